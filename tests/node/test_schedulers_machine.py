"""Both schedulers on one tight pool, whatever requests and aborts come: outputs are the reference's, every
request ends exactly once, every block comes back."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.core.errors import ResourceExhausted, Unavailable
from baton.core.kvcache import KvCache
from baton.core.node_effects import Ended, Key, KvReady, NodeEffect, Prefilled, Started, TokensOut
from baton.core.request import FinishReason, Request, SamplingParams
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from tests.fake_kv import FakeMemory, reference, run

BLOCK = 4
BLOCKS = 13
MAX_LEN = (BLOCKS - 1) * BLOCK
BUDGET = 12
LONG = tuple(range(1, 41))
PROMPTS = (
    LONG[:1],
    LONG[:3],
    LONG[:4],
    LONG[:5],
    LONG[:12],
    LONG[:13],
    LONG,
    (*LONG[:12], 60, 61),
    (70,) * 9,
)


@dataclass(eq=False)
class Client:
    """What a router knows of one request."""

    request: Request
    remote: bool
    output: list[int] = field(default_factory=list)
    ended: Ended | None = None
    started: int = 0
    exported: Prefilled | None = None
    pinned: bool = False


class SchedulersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = KvCache(BLOCKS, BLOCK)
        self.memory = FakeMemory(BLOCKS, BLOCK)
        limits = PrefillLimits(MAX_LEN, chunk_tokens=5, max_waiting=8, max_running=3, max_exporting=2)
        self.prefill = PrefillScheduler(self.kv, limits, "r")
        decode = DecodeLimits(MAX_LEN, max_running=4, chunk_tokens=5)
        self.decode = DecodeScheduler(self.kv, decode, "r", reclaim=self.prefill.reclaim)
        self.clients: dict[Key, Client] = {}
        self.running: tuple[dict, dict] | None = None  # outputs of the batch in flight
        self.ids = count()
        self.now = 0.0

    # ---- the world ---------------------------------------------------------------------------------------

    @rule(
        prompt=st.sampled_from(PROMPTS),
        max_tokens=st.integers(1, 50),
        priority=st.integers(-1, 1),
        remote=st.booleans(),
        timeout_s=st.none() | st.integers(1, 200),
        stop=st.booleans(),
        prompt_logprobs=st.booleans(),
    )
    def submit(self, prompt, max_tokens, priority, remote, timeout_s, stop, prompt_logprobs) -> None:
        sampling = SamplingParams(
            stop_token_ids=tuple(range(10)) if stop else (), prompt_logprobs=0 if prompt_logprobs else None
        )
        request = Request(str(next(self.ids)), prompt, sampling, max_tokens=max_tokens, priority=priority)
        deadline_s = None if timeout_s is None else self.now + timeout_s
        try:
            self.prefill.add(self.now, request, deadline_s, remote=remote)
        except ResourceExhausted:
            assert self.prefill.stats().waiting == 8
        else:
            self.clients[request.id, 0] = Client(request, remote, pinned=remote)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), fail=st.booleans())
    def abort(self, data: st.DataObject, fail: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.clients)))
        for scheduler in (self.prefill, self.decode):
            self.take_in(scheduler.fail(key, Unavailable("x")) if fail else scheduler.abort(key, silent=True))

    @precondition(lambda self: self.running is None)
    @rule()
    def depart(self) -> None:
        decode = self.decode.schedule(self.now, BUDGET)
        left = BUDGET - sum(row.length for row in decode)
        prefill = self.prefill.schedule(self.now, left, self.decode.headroom_blocks())
        assert sum(row.length for row in (*decode, *prefill)) <= BUDGET
        assert len({row.seq for row in (*decode, *prefill)}) == len(decode) + len(prefill)
        for row in (*decode, *prefill):
            assert self.clients[row.seq].ended is None, "runs after its end"
        self.memory.clear(self.kv.take_dirty())
        self.running = run(self.memory, decode), run(self.memory, prefill)

    @precondition(lambda self: self.running is not None)
    @rule()
    def land(self) -> None:
        assert self.running is not None
        (decode, prefill), self.running = self.running, None
        self.take_in(self.decode.complete(self.now, decode))
        self.take_in(self.prefill.complete(self.now, prefill))

    @precondition(lambda self: any(client.pinned for client in self.clients.values()))
    @rule(data=st.data())
    def hand_off_ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, client in self.clients.items() if client.pinned)))
        client = self.clients[key]
        if client.exported is None and client.ended is None:
            return  # a hand-off that still has work to do
        self.release(key)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.take_in(self.prefill.expire(self.now))
        self.take_in(self.decode.expire(self.now))

    # ---- what must hold ----------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        self.kv.check()
        self.prefill.check()
        self.decode.check()
        owned = [*self.prefill.owned(), *self.decode.owned()]
        owners = Counter(block for blocks in owned for block in blocks)
        assert {block: self.kv.pool.refs(block) for block in owners} == owners
        assert self.kv.pool.owned == len(owners)
        stats = self.prefill.stats()
        assert stats.prefix_hits <= stats.prefix_queries

    def release(self, key: Key) -> None:
        client = self.clients[key]
        if client.exported is not None and client.pinned:  # what a write would read is what was computed
            tokens = [*client.request.prompt_ids, *client.exported.output_ids]
            self.memory.must_hold(client.exported.blocks, tokens, client.exported.tokens)
        client.pinned = False
        self.prefill.release(key)

    def take_in(self, effects: list[NodeEffect]) -> None:
        for effect in effects:
            client = self.clients[effect.key]
            assert client.ended is None, "something after the end"
            match effect:
                case Started():
                    client.started += 1
                    assert client.started == 1
                case TokensOut(index=index, token_ids=token_ids):
                    assert index == len(client.output), "a token skipped or repeated"
                    if index == 0 and client.request.sampling.prompt_logprobs is not None:
                        wanted = range(1, len(client.request.prompt_ids))
                        assert [entry.token_id for entry in effect.prompt_logprobs] == list(wanted)
                    client.output += token_ids
                case KvReady(tokens=tokens, blocks=blocks):
                    self.memory.must_hold(blocks, client.request.prompt_ids, tokens)
                case Prefilled() if client.remote:
                    client.exported = effect
                case Prefilled():
                    self.take_in(self.decode.adopt(self.now, self.prefill.take(effect.key)))
                case Ended():
                    client.ended = effect
                    self.judge(client)

    def judge(self, client: Client) -> None:
        expected, reason = reference(client.request, MAX_LEN)
        assert client.ended is not None
        assert client.ended.output_tokens == len(client.output)
        if client.ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert (client.output, client.ended.reason) == (expected, reason)
        else:
            assert client.output == expected[: len(client.output)]
            assert (client.ended.error is None) == (client.ended.reason is FinishReason.CANCELLED)

    def teardown(self) -> None:
        """Without more requests everything ends, in a bounded number of steps, and gives all back."""
        for _ in range(2000):
            if self.running is None:
                for key in [key for key, client in self.clients.items() if client.exported or client.ended]:
                    self.release(key)
                if not (self.prefill.busy or self.decode.busy):
                    break
                self.depart()
            self.land()
            self.books_agree()
        for client in self.clients.values():
            assert client.ended is not None or client.exported is not None, "never ended"
        assert self.kv.pool.owned == 0
        assert self.prefill.stats().exporting == 0


TestSchedulersMachine = SchedulersMachine.TestCase
TestSchedulersMachine.settings = settings(max_examples=40, stateful_step_count=60)
