"""A hostile world round a RouterMachine: nodes that die, repeat, reorder and lie about their load; clients
that give up. Keeps what must hold of the effects (the oracle).

Nodes produce token 1000 + position at every position, so a gap, a repeat or a wrong order shows in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from baton.core.errors import Code, error_for
from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.request import FinishReason, Request
from baton.router.events import (
    Arrived,
    Cancelled,
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    Effect,
    Event,
    HandedOff,
    KvChanged,
    NodeFailed,
    NodeFinished,
    NodeInfo,
    NodeJoined,
    NodeLost,
    NodeReported,
    OperatorDrain,
    OperatorRole,
    PrefillStarted,
    Reject,
    SetDrain,
    SetRole,
    Tick,
    TokensMade,
)
from baton.router.machine import RouterMachine

FINGERPRINTS = [
    Fingerprint("1", "llama", weights, "t", "g", "none", "float32", "native")
    for weights in ("w0", "w0", "w0", "w1")
]
TOKEN = 1000


@dataclass
class FakeNode:
    info: NodeInfo
    load: LoadReport
    draining: bool = False
    registered: bool = True


@dataclass
class Run:
    """An attempt as its two nodes see it: events still to come out, per node, in that node's order."""

    request: Request
    prefill: str
    decode: str
    streams: dict[str, list[Event]] = field(default_factory=dict)


@dataclass
class Client:
    request: Request
    got: list[int] = field(default_factory=list)
    stopped: bool = False  # it found a stop string: nothing more is to be delivered
    ended: bool = False


class World:
    def __init__(
        self,
        machine: RouterMachine,
        dice: Random,
        on_event: Callable[[float, Event], None] = lambda now, event: None,
    ) -> None:
        self.machine, self.dice, self.on_event = machine, dice, on_event
        self.now = 0.0
        self.nodes: dict[str, FakeNode] = {}
        self.clients: dict[str, Client] = {}
        self.runs: dict[tuple[str, int], Run] = {}
        self.past: list[Event] = []
        self.effects_by_step: list[list[Effect]] = []
        self.made = 0

    # ---- stepping and the oracle ---------------------------------------------------------------------

    def step(self, event: Event) -> None:
        self.on_event(self.now, event)
        effects = self.machine.step(self.now, event)
        self.effects_by_step.append(effects)
        for effect in effects:
            self.judge(effect)
        self.machine.check()
        assert self.machine.queued >= 0
        assert self.machine.in_flight >= 0

    def judge(self, effect: Effect) -> None:
        match effect:
            case Dispatch(request, prefill, decode):
                self.judge_dispatch(request, prefill, decode)
            case Deliver(request_id, index, token_ids):
                client = self.clients[request_id]
                assert not client.ended, "tokens after the end"
                assert not client.stopped, "tokens after a stop string"
                assert index == len(client.got), "a gap or a repeat"
                client.got.extend(token_ids)
                assert client.got == [TOKEN + i for i in range(len(client.got))]
                assert len(client.got) <= client.request.max_tokens
            case Complete(request_id, reason, outcome):
                self.end(request_id)
                got = len(self.clients[request_id].got)
                assert outcome.output_tokens == got
                if reason is FinishReason.LENGTH:
                    assert got == self.clients[request_id].request.max_tokens
            case Reject(request_id):
                self.end(request_id)
            case CancelOn(node_id, request_id, attempt):
                run = self.runs[request_id, attempt]
                assert node_id in (run.prefill, run.decode)
                run.streams.pop(node_id, None)
            case SetRole(node_id, role):
                node = self.nodes[node_id]
                if self.dice.random() < 0.7:
                    node.load = replace(node.load, role=role)
            case SetDrain(node_id, draining):
                self.nodes[node_id].draining = draining

    def judge_dispatch(self, request: Request, prefill: str, decode: str) -> None:
        client = self.clients[request.id]
        assert not client.ended
        assert list(request.output_ids) == client.got, "a retry continues what was delivered"
        assert (request.id, request.attempt) not in self.runs, "an attempt runs once"
        states = {status.info.node_id: status.state for status in self.machine.nodes(self.now)}
        for node_id in (prefill, decode):
            assert states[node_id] == "up"
            assert self.nodes[node_id].registered
            assert not self.nodes[node_id].draining
        assert self.nodes[prefill].info.fingerprint == self.nodes[decode].info.fingerprint
        self.start(request, prefill, decode)

    def end(self, request_id: str) -> None:
        assert not self.clients[request_id].ended, "a request ended twice"
        self.clients[request_id].ended = True

    # ---- what happens in it --------------------------------------------------------------------------

    def start(self, request: Request, prefill: str, decode: str) -> None:
        run = Run(request, prefill, decode)
        self.runs[request.id, request.attempt] = run
        base, key = len(request.output_ids), (request.id, request.attempt)
        first: list[Event] = [
            PrefillStarted(*key, prefill, 0, 0.0),
            TokensMade(*key, prefill, base, (TOKEN + base,)),
        ]
        rest: list[Event] = []
        position = base + 1
        while position < request.max_tokens:
            count = min(self.dice.randint(1, 3), request.max_tokens - position)
            ids = tuple(range(TOKEN + position, TOKEN + position + count))
            rest.append(TokensMade(*key, decode, position, ids))
            position += count
        if rest:
            first.append(HandedOff(*key, prefill, 0.1, 0.1, 10))
            rest.append(NodeFinished(*key, decode, FinishReason.LENGTH, request.max_tokens))
        else:
            first.append(NodeFinished(*key, prefill, FinishReason.LENGTH, request.max_tokens))
        if prefill == decode:
            run.streams = {prefill: first + rest}
        else:
            run.streams = {prefill: first, decode: rest}

    def pick_node(self) -> FakeNode | None:
        alive = [node for node in self.nodes.values() if node.registered]
        return self.dice.choice(alive) if alive else None

    def join(self) -> None:
        node_id = f"n{self.dice.randrange(6)}"
        old = self.nodes.get(node_id)
        if old is not None and old.registered and self.dice.random() < 0.7:
            self.step(NodeJoined(old.info))  # the same again
            return
        self.made += 1
        role = self.dice.choice([Role.PREFILL, Role.DECODE, Role.BOTH])
        load = LoadReport(1, role, blocks_total=500, blocks_free=500, block_size=4, max_running=3)
        fingerprint = self.dice.choice(FINGERPRINTS)
        info = NodeInfo(node_id, f"i{self.made}", "a:1", "h", fingerprint, 4, 500, 64, 256, load)
        self.break_streams(node_id)
        self.nodes[node_id] = FakeNode(info, load)
        self.step(NodeJoined(info))

    def lose(self) -> None:
        node = self.pick_node()
        if node is not None:
            node.registered = False
            self.break_streams(node.info.node_id)
            self.step(NodeLost(node.info.node_id, node.info.incarnation, "dice"))

    def break_streams(self, node_id: str) -> None:
        for run in self.runs.values():
            run.streams.pop(node_id, None)

    def report(self) -> None:
        node = self.pick_node()
        if node is None:
            return
        seq = node.load.seq + self.dice.choice([1, 1, 1, 0, -1])
        load = replace(
            node.load,
            seq=max(0, seq),
            draining=node.draining,
            waiting=self.dice.randrange(3),
            waiting_tokens=self.dice.randrange(2000),
            running=self.dice.randrange(4),
            blocks_free=self.dice.randrange(500),
            prefill_samples=((self.dice.randrange(1, 99), 0, self.dice.random()),),
        )
        if seq > node.load.seq:
            node.load = load
        self.step(NodeReported(node.info.node_id, node.info.incarnation, load))

    def arrive(self) -> None:
        self.made += 1
        prompt = tuple(range(1, self.dice.randint(2, 60)))
        request = Request(
            f"r{self.made}", prompt, max_tokens=self.dice.randint(1, 8), priority=self.dice.randrange(3)
        )
        self.clients[request.id] = Client(request)
        deadline_s = self.now + self.dice.random() * 5 if self.dice.random() < 0.3 else None
        self.step(Arrived(request, deadline_s))

    def cancel(self) -> None:
        if self.clients:
            reason = self.dice.choice([FinishReason.CANCELLED, FinishReason.STOP])
            request_id = self.dice.choice(list(self.clients))
            self.step(Cancelled(request_id, reason))
            self.clients[request_id].stopped = True

    def progress(self) -> None:
        """A node with something to say says it: mostly the next thing, sometimes again, sometimes early."""
        busy = [stream for run in self.runs.values() for stream in run.streams.values() if stream]
        if not busy:
            return
        stream = self.dice.choice(busy)
        place = 0
        if len(stream) > 1 and self.dice.random() < 0.1 and isinstance(stream[1], TokensMade):
            place = 1
        event = stream.pop(place)
        self.past.append(event)
        self.step(event)

    def repeat(self) -> None:
        if self.past:
            self.step(self.dice.choice(self.past))

    def fail(self) -> None:
        busy = [(run, n) for run in self.runs.values() for n, stream in run.streams.items() if stream]
        if busy:
            run, node_id = self.dice.choice(busy)
            run.streams.clear()
            codes = [Code.UNAVAILABLE, Code.INTERNAL, Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT]
            error = error_for(self.dice.choice(codes), "dice")
            self.step(NodeFailed(run.request.id, run.request.attempt, node_id, error))

    def operate(self) -> None:
        node = self.pick_node()
        known = {status.info.node_id for status in self.machine.nodes(self.now)}  # not silent for too long
        if node is not None and node.info.node_id in known:
            if self.dice.random() < 0.5:
                self.step(OperatorDrain(node.info.node_id, self.dice.random() < 0.4))
            else:
                self.step(OperatorRole(node.info.node_id, self.dice.choice(list(Role))))

    def cache(self) -> None:
        node = self.pick_node()
        if node is not None:
            self.step(KvChanged(node.info.node_id, node.info.incarnation, (b"k" * 16,), (), False))

    def pass_time(self) -> None:
        """Time goes on; the machine is woken whenever it asked to be."""
        until = self.now + self.dice.random() * 0.5
        for _ in range(1000):
            due = self.machine.next_wakeup()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.step(Tick())
        else:
            raise AssertionError("the machine asks to be woken for ever")
        self.now = until

    def run(self, steps: int) -> None:
        actions = [self.progress] * 12 + [self.arrive] * 5 + [self.report] * 4 + [self.pass_time] * 4
        actions += [self.join] * 2 + [self.repeat] * 2
        actions += [self.lose, self.cancel, self.fail, self.operate, self.cache]
        for _ in range(steps):
            self.dice.choice(actions)()

    def settle(self) -> None:
        """Everything plays out: clients give up, and nothing may be left."""
        for request_id in list(self.clients):
            self.step(Cancelled(request_id))
        assert all(client.ended for client in self.clients.values())
        assert self.machine.queued == self.machine.in_flight == 0
        assert all(status.in_flight == 0 for status in self.machine.nodes(self.now))
