"""Prefill processes and one decode node that hand KV over, with a network that delays and breaks.

Everything is driven by calls, nothing happens by itself: messages lie in queues until delivered, writes until
they land. Both pools are fake memories; the source's blocks are spoiled the moment they are released, so a
write that reads too late carries junk, and a write that lands too late spoils whoever has the block then.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.core.blocks import QUARANTINED
from baton.core.errors import BatonError
from baton.core.kvcache import KvCache
from baton.core.node_effects import (
    Admit,
    DropLink,
    Ended,
    Fence,
    FetchOver,
    Key,
    SendCommitted,
    SendRefusal,
    SendRevoke,
    SendTicket,
    SinkEffect,
)
from baton.core.phase import Phase
from baton.core.prefix import chain, root_key
from baton.core.request import Request
from baton.core.sequence import Sequence
from baton.kv_transfer import handoff
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.kv_transfer.handoff_source import HandoffSource
from baton.kv_transfer.writes import Completion, Outcome, Write
from tests.fake_kv import VOCAB, FakeMemory, digest, next_token

JUNK = -7


@dataclass(eq=False)
class Prompt:
    """A request in computation at a source."""

    request: Request
    blocks: list[int]
    computed: int = 0
    done: bool = False  # prefilled, or ended here


@dataclass(eq=False)
class Pending:
    """A write on its way. landed: tokens of it that are in the target already."""

    link: str
    write: Write
    landed: int = 0
    cancelled: bool = False


class Process:
    """One life of a prefill node: its source machine, pool, and both directions of its stream."""

    def __init__(self, world: "World", name: str, first_id: int, block_size: int) -> None:
        self.world = world
        self.name = name
        self.source = HandoffSource(block_size, first_id=first_id)
        self.kv = KvCache(64, block_size, prefix_caching=False)
        self.memory = FakeMemory(64, block_size)
        self.prompts: dict[Key, Prompt] = {}
        self.to_sink: deque[Callable[[], list[SinkEffect]]] = deque()
        self.to_source: deque[Callable[[], list[handoff.SourceEffect]]] = deque()
        self.writes: list[Pending] = []
        self.up = self.alive = True
        self.outcomes: dict[Key, list[object]] = {}

    def start(self, request: Request) -> None:
        key = (request.id, request.attempt)
        tokens = request.prefill_tokens
        self.prompts[key] = Prompt(request, self.kv.allocate(self.kv.blocks_for(tokens)))
        self.memory.clear(self.prompts[key].blocks)
        self.outcomes[key] = []
        peer = handoff.PeerPool(self.world.kv.block_size, self.world.kv.pool.num_blocks)
        self.run(self.source.start(self.world.now, self.name, peer, request, "router"))

    def lend(self, request: Request) -> None:
        """The prompt, whole blocks, is cached here, and the sink has asked for it."""
        key, ids = (request.id, request.attempt), request.token_ids
        prompt = self.prompts[key] = Prompt(
            request, self.kv.allocate(self.kv.blocks_for(len(ids))), done=True
        )
        self.outcomes[key] = []
        for position in range(len(ids)):
            self.memory.write(prompt.blocks, position, digest(ids[: position + 1]))
        loan = handoff.Loan(key, len(ids), self.world.keys(ids)[-1])
        self.world.asked[key] = request
        peer = handoff.PeerPool(self.world.kv.block_size, self.world.kv.pool.num_blocks)
        self.run(self.source.lend(self.world.now, self.name, peer, key, loan, prompt.blocks))

    def compute(self, prompt: Prompt, tokens: int) -> None:
        """A chunk of the prompt; with the last one, the first output token."""
        request, ids = prompt.request, prompt.request.token_ids
        key = (request.id, request.attempt)
        end = min(len(ids), prompt.computed + tokens)
        for position in range(prompt.computed, end):
            self.memory.write(prompt.blocks, position, digest(ids[: position + 1]))
        prompt.computed = end
        if end < len(ids):
            self.run(self.source.kv_ready(self.world.now, key, end, prompt.blocks))
            return
        prompt.done = True
        output = (*request.output_ids, next_token(ids))
        self.run(self.source.prefilled(self.world.now, key, end, prompt.blocks, output))

    def abort(self, key: Key) -> None:
        if key in self.prompts:
            self.prompts[key].done = True
        self.run(self.source.abort(self.world.now, key))

    def run(self, effects: list[handoff.SourceEffect]) -> None:
        world, sink = self.world, self.world.sink
        for effect in effects:
            match effect:
                case handoff.SubmitWrite(_, write):
                    self.writes.append(Pending(self.name, write))
                case handoff.CancelWrites(_, transfer_id):
                    for pending in self.writes:
                        pending.cancelled |= pending.write.transfer_id == transfer_id
                case handoff.Release(key):
                    prompt = self.prompts.pop(key)
                    for block in prompt.blocks:
                        self.memory.cells[block] = [JUNK] * self.kv.block_size
                    self.kv.release(prompt.blocks)
                    self.outcomes[key].append(effect)
                case handoff.HandedOff(key) | handoff.TransferFailed(key):
                    self.outcomes[key].append(effect)
                case handoff.SendReserve(link, i, router, request):
                    self.say(lambda to=link, i=i, q=request, r=router: sink.reserve(world.now, to, i, q, r))
                case handoff.SendOffer(link, i, loan):
                    self.say(lambda to=link, i=i, o=loan: world.offered(to, i, o))
                case handoff.SendCommit(link, i, tokens, ids):
                    self.say(lambda to=link, i=i, t=tokens, o=ids: sink.commit(world.now, to, i, t, o))
                case handoff.SendAbandon(link, i):
                    self.say(lambda to=link, i=i: sink.abandon(world.now, to, i))
                case handoff.SendRevoked(link, i):
                    self.say(lambda to=link, i=i: sink.revoked(world.now, to, i))

    def say(self, message: Callable[[], list[SinkEffect]]) -> None:
        if self.up:
            self.to_sink.append(message)

    def lose_stream(self) -> None:
        self.up = False
        self.to_sink.clear()
        self.to_source.clear()
        if self.alive:
            self.run(self.source.link_lost(self.world.now, self.name))

    def end_write(self, pending: Pending, outcome: Outcome) -> None:
        self.writes.remove(pending)
        write = pending.write
        if self.alive:
            done = Completion(write.write_id, write.transfer_id, outcome, write.end - write.start)
            self.run(self.source.completion(self.world.now, done))


@dataclass(eq=False)
class Resident:
    """A committed sequence at decode, until it is let go."""

    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    computed: int


@dataclass
class World:
    """fences: whether the transport can stop a writer (as TCP) or not (as shared memory)."""

    kv: KvCache
    fences: bool
    source_block: int
    lease_s: float = 10.0
    now: float = 0.0
    processes: list[Process] = field(default_factory=list)
    residents: list[Resident] = field(default_factory=list)
    admitted: Counter[Key] = field(default_factory=Counter)
    ended: Counter[Key] = field(default_factory=Counter)
    asked: dict[Key, Request] = field(default_factory=dict)  # loans: what the sink wants to have
    fetched: dict[Key, list[int]] = field(default_factory=dict)  # tokens that came, by FetchOver
    permits: set[tuple[str, int]] = field(default_factory=set)  # transfers whose writes may land
    births: int = 0

    def __post_init__(self) -> None:
        limits = SinkLimits(1000, VOCAB, max_waiting=4, max_bypass=2, lease_s=self.lease_s)
        self.sink = HandoffSink(self.kv, limits, "r")
        self.memory = FakeMemory(self.kv.pool.num_blocks, self.kv.block_size)

    def spawn(self, node: str) -> Process:
        """A prefill process; a new one of the same node is another incarnation."""
        self.births += 1
        name = f"{node}/{self.births}"
        process = Process(self, name, self.births * 1000, self.source_block)
        self.processes.append(process)
        return process

    def process(self, link: str) -> Process:
        return next(process for process in self.processes if process.name == link)

    # ---- the network -------------------------------------------------------------------------------------

    def deliver(self, process: Process) -> None:
        """One message in each direction."""
        if process.to_sink:
            self.run(process.to_sink.popleft()())
        if process.to_source:
            process.run(process.to_source.popleft()())

    def land(self, process: Process, pending: Pending, tokens: int) -> None:
        """Some more tokens of a write reach the target's memory; with the last one it is applied."""
        write, size, source = pending.write, self.kv.block_size, process.memory.block_size
        if self.fences and (process.name, write.transfer_id) not in self.permits:
            process.end_write(pending, Outcome.FAILED)
            return
        start = write.start + pending.landed
        for position in range(start, min(start + tokens, write.end)):
            from_block = write.src_blocks[(position - write.src_first) // source]
            to_block = write.dst_blocks[(position - write.dst_first) // size]
            held = self.kv.pool.refs(to_block) or self.kv.pool._place[to_block] == QUARANTINED
            assert held, "written after it was free"
            self.memory.cells[to_block][position % size] = process.memory.cells[from_block][position % source]
            pending.landed += 1
        if write.start + pending.landed == write.end:
            process.end_write(pending, Outcome.APPLIED)

    def fail(self, process: Process, pending: Pending) -> None:
        """The transport gives a write up, part of it landed or not."""
        process.end_write(pending, Outcome.CANCELLED if pending.cancelled else Outcome.FAILED)

    def lose(self, process: Process) -> None:
        process.lose_stream()
        self.run(self.sink.link_lost(self.now, process.name))

    def reconnect(self, process: Process) -> bool:
        if process.up or not process.alive or not process.source.settled(process.name):
            return False
        process.up = True
        self.run(self.sink.writer_returned(self.now, process.name))
        return True

    def kill(self, process: Process) -> None:
        """SIGKILL. What TCP has on its way may still land; shared memory is written no more."""
        process.alive = False
        if not self.fences:
            process.writes.clear()
        process.lose_stream()

    def notice_death(self, process: Process) -> None:
        self.run(self.sink.link_lost(self.now, process.name))
        if not self.fences:
            self.run(self.sink.writer_dead(self.now, process.name))

    # ---- decode ------------------------------------------------------------------------------------------

    def pump(self, keep: int = 0) -> None:
        effects = self.sink.pump(self.now, keep)
        self.memory.clear(self.kv.take_dirty())
        self.run(effects)

    def wait(self, seconds: float, *, beats: bool) -> None:
        self.now += seconds
        for process in self.processes:
            if beats and process.up:
                self.sink.beat(self.now, process.name)
            if process.alive:
                process.run(process.source.expire(self.now))
        self.run(self.sink.expire(self.now))

    def let_go(self, resident: Resident) -> None:
        self.residents.remove(resident)
        self.kv.release(resident.blocks)

    def run(self, effects: list[SinkEffect]) -> None:
        for effect in effects:
            match effect:
                case SendTicket(link, i, cached, blocks):
                    ticket = handoff.Ticket(link, i, cached, blocks)
                    self.permits.add((link, i))
                    self.tell(link, lambda s, t=ticket: s.ticket(self.now, t))
                case SendRefusal(link, i, error):
                    self.tell(link, lambda s, to=link, i=i, e=error: s.refused(self.now, to, i, e))
                case SendCommitted(link, i):
                    self.tell(link, lambda s, to=link, i=i: s.committed(self.now, to, i))
                case SendRevoke(link, i):
                    self.tell(link, lambda s, to=link, i=i: s.revoke(self.now, to, i))
                case Fence(link, i):
                    self.fence(link, i)
                case DropLink(link):
                    self.process(link).lose_stream()
                case Admit():
                    self.admit(effect)
                case FetchOver(key, tokens):
                    self.fetched.setdefault(key, []).append(tokens)
                    self.residents_are_right()
                case Ended(key):
                    self.ended[key] += 1

    def tell(self, link: str, message: Callable[[HandoffSource], list[handoff.SourceEffect]]) -> None:
        process = self.process(link)
        if process.up:
            process.to_source.append(lambda: message(process.source))

    def keys(self, ids: tuple[int, ...]) -> tuple[bytes, ...]:
        return tuple(chain(root_key(revision="r"), ids, self.kv.block_size))

    def offered(self, link: str, transfer_id: int, loan: handoff.Loan) -> list[SinkEffect]:
        request = self.asked[loan.key]
        keys = self.keys(request.token_ids)
        assert keys[-1] == loan.last_key
        return self.sink.offer(self.now, link, transfer_id, request, keys)

    def fence(self, link: str, transfer_id: int) -> None:
        if not self.fences:
            return
        self.permits.discard((link, transfer_id))
        self.run(self.sink.fenced(link, transfer_id))

    def admit(self, admit: Admit) -> None:
        request = admit.request
        self.admitted[request.id, request.attempt] += 1
        assert request.output_ids[-1] == next_token(request.token_ids[:-1]), "not what prefill sampled"
        self.residents.append(Resident(request.token_ids, admit.blocks, admit.computed))
        self.residents_are_right()
        sequence = Sequence(request, Phase.READY, 0.0, blocks=list(admit.blocks), computed=admit.computed)
        sequence.publish(self.kv, "r")

    # ---- what must hold ----------------------------------------------------------------------------------

    def residents_are_right(self) -> None:
        for resident in self.residents:
            self.memory.must_hold(resident.blocks, resident.tokens, resident.computed)
        for request in self.asked.values():  # what was lent, or got here otherwise, is what can be found
            found = self.kv.index.match(self.keys(request.token_ids))
            self.memory.must_hold(found, request.token_ids, len(found) * self.kv.block_size)

    def books_agree(self) -> None:
        self.kv.check()
        self.sink.check()
        owners = Counter(b for blocks in self.sink.owned() for b in blocks)
        owners.update(b for resident in self.residents for b in resident.blocks)
        assert {block: self.kv.pool.refs(block) for block in owners} == owners
        assert self.kv.pool.owned == len(owners)
        for process in self.processes:
            if process.alive:
                process.source.check()
                process.kv.check()

    def settle(self) -> None:
        """Everything takes its course: messages arrive, writes land, deaths are noticed, sequences end."""
        for _ in range(300):
            for process in self.processes:
                for prompt in [p for p in process.prompts.values() if process.alive and not p.done]:
                    process.compute(prompt, 100)
                for pending in list(process.writes):
                    self.land(process, pending, 100)
                while process.to_sink or process.to_source:
                    self.deliver(process)
                self.reconnect(process)
                if not process.alive:
                    self.notice_death(process)
            for resident in list(self.residents):
                self.let_go(resident)
            self.pump()
            if not any(process.prompts for process in self.processes if process.alive):
                break
        self.wait(1.0, beats=True)


def outcome_of(process: Process, key: Key) -> BatonError | str | None:
    """What the source said of a hand-off in the end: its error, or "handed off"; None: only Release."""
    said = process.outcomes[key]
    assert said, "no Release"
    assert isinstance(said[-1], handoff.Release), "no Release"
    assert sum(isinstance(one, handoff.Release) for one in said) == 1
    assert len(said) <= 2
    match said[0]:
        case handoff.TransferFailed(_, error):
            return error
        case handoff.HandedOff():
            return "handed off"
    return None
