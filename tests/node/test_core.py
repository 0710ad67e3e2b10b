"""Both roles over one pool, turned by the engine thread with a runner whose tokens are a known function."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from baton.core.batch import Batch, StepOutput
from baton.core.cascade import CascadeCost
from baton.core.errors import ResourceExhausted
from baton.core.kvcache import KvCache
from baton.core.load import Role
from baton.core.model import Fingerprint, ModelInfo
from baton.core.node_effects import DropLink, Ended, SendTicket, TokensOut
from baton.core.request import FinishReason, Request, SamplingParams
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.node import commands as cmd
from baton.node.core import CoreLimits, KvChange, LoadOut, Misbehaved, NodeCore, Out, SnapshotOut
from baton.node.engine_thread import EngineThread
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from tests.fake_kv import FakeMemory, reference, run
from tests.patience import Patience

BLOCK = 4
BLOCKS = 17
MAX_LEN = (BLOCKS - 1) * BLOCK
INFO = ModelInfo(
    "fake", 1 << 31, MAX_LEN, (), Fingerprint("1", "fake", "w", "t", "g", "none", "float32", "native")
)


class Runner:
    """gate: a step waits for it. stop_after: it closes after so many steps. fails: the next step raises."""

    info = INFO

    def __init__(self) -> None:
        self.memory = FakeMemory(BLOCKS, BLOCK)
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.stop_after = -1
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> StepOutput:
        self.gate.wait(10)
        if self.fails:
            raise RuntimeError("the device fell off")
        self.batches.append(batch)
        if len([done for done in self.batches if done.rows]) == self.stop_after:
            self.gate.clear()
        self.memory.clear(batch.clear)
        return StepOutput(tuple(run(self.memory, batch.rows).values()), duration_s=0.001)

    def close(self) -> None: ...


class Node:
    """A core on an engine thread, and what it emitted."""

    def __init__(self) -> None:
        kv = KvCache(BLOCKS, BLOCK)
        prefill = PrefillScheduler(kv, PrefillLimits(MAX_LEN, chunk_tokens=8, max_waiting=4), "r")
        decode = DecodeScheduler(kv, DecodeLimits(MAX_LEN, max_running=4), "r", prefill.reclaim)
        sink = HandoffSink(kv, SinkLimits(MAX_LEN, INFO.vocab_size), "r")
        self.core = NodeCore(kv, prefill, decode, sink, Role.BOTH, CoreLimits(16, 4, CascadeCost(1)))
        self.runner = Runner()
        self.outs: list[Out] = []
        self.turns = 0
        self.engine = EngineThread(self.core, self.runner, self._emit)

    def _emit(self, outs: Sequence[Out]) -> None:
        self.turns += 1
        self.outs.extend(outs)

    def tokens(self, request: Request) -> list[int]:
        made = [out for out in self.outs if isinstance(out, TokensOut) and out.key[0] == request.id]
        assert [out.index for out in made] == list(range(len(made)))
        return [token for out in made for token in out.token_ids]

    def at_rest(self) -> bool:
        """Nothing is to be done, and the engine's thread waits: for a second, if nothing comes."""
        return not self.core.has_work and self.engine.turn_started_s is None

    def ended(self, request: Request) -> Ended | None:
        return next((o for o in self.outs if isinstance(o, Ended) and o.key[0] == request.id), None)


@pytest.fixture
def node():
    node = Node()
    node.engine.start()
    yield node
    node.runner.gate.set()
    assert node.engine.stop(30)


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    patience = Patience(within_s)
    while not condition():
        assert patience.lasts()
        time.sleep(0.001)


def request(name: str, prompt: Sequence[int], max_tokens: int = 6) -> Request:
    return Request(name, tuple(prompt), SamplingParams(temperature=0.0), max_tokens=max_tokens)


def test_requests_in_place_get_the_reference_and_leave_nothing(node: Node) -> None:
    requests = [request(f"r{i}", range(1, 4 + 5 * i)) for i in range(4)]
    for one in requests:
        node.engine.post(cmd.Add(one, None, in_place=True))
    until(lambda: all(node.ended(one) for one in requests))
    for one in requests:
        want, reason = reference(one, MAX_LEN)
        ended = node.ended(one)
        assert ended is not None
        assert (node.tokens(one), ended.reason) == (want, reason)
    until(node.at_rest)
    node.core.check()
    assert node.core.load().blocks_free == BLOCKS - 1
    loads = [out.load for out in node.outs if isinstance(out, LoadOut)]
    assert sorted(name for load in loads for name in load.arrived) == [one.id for one in requests]
    assert [load.seq for load in loads] == sorted({load.seq for load in loads})


def test_what_rows_share_is_told_with_each_step(node: Node) -> None:
    """Both in decode and, with a cached prefix, in a prompt's last chunk."""
    prompt = list(range(1, 10))
    requests = [
        request("first", prompt, max_tokens=20),
        *(request(f"r{i}", [*prompt, 50 + i]) for i in range(3)),
    ]
    node.runner.stop_after = 4
    node.engine.post(cmd.Add(requests[0], None, in_place=True))
    until(lambda: not node.runner.gate.is_set())
    for one in requests[1:]:
        node.engine.post(cmd.Add(one, None, in_place=True))
    node.runner.stop_after = -1
    node.runner.gate.set()
    until(lambda: all(node.ended(one) for one in requests))
    assert all(node.tokens(one) == reference(one, MAX_LEN)[0] for one in requests)
    parts = [(batch, part) for batch in node.runner.batches for part in batch.shared]
    for batch, part in parts:
        rows = [batch.rows[i] for i in part.rows]
        assert len({tuple(row.block_table[: part.end_block]) for row in rows}) == 1
        assert all(part.end_block * BLOCK <= row.start for row in rows)
    assert any(len(part.rows) == 4 and part.end_block == 2 for _, part in parts)
    assert any(batch.rows[i].length > 1 for batch, part in parts for i in part.rows)


def test_a_refused_request_ends_with_its_reason(node: Node) -> None:
    node.runner.gate.clear()
    requests = [request(f"r{i}", range(1, 10)) for i in range(12)]
    for one in requests:
        node.engine.post(cmd.Add(one, None, in_place=True))
    node.runner.gate.set()
    until(lambda: all(node.ended(one) for one in requests))
    refused = [ended for one in requests if (ended := node.ended(one)) and ended.error is not None]
    assert refused
    assert all(isinstance(ended.error, ResourceExhausted) for ended in refused)


def test_an_abort_during_a_step_is_silent_and_frees_everything(node: Node) -> None:
    one = request("r", range(1, 30), max_tokens=30)
    node.runner.stop_after = 8
    node.engine.post(cmd.Add(one, None, in_place=True))
    until(lambda: not node.runner.gate.is_set())
    node.engine.post(cmd.AbortKeys((("r", 0),)))
    node.engine.post(cmd.AbortKeys((("r", 0), ("unknown", 3))))
    node.runner.gate.set()
    until(lambda: node.ended(one))
    ended = node.ended(one)
    assert ended is not None
    assert (ended.silent, ended.reason) == (True, FinishReason.CANCELLED)
    until(lambda: node.core.load().blocks_free == BLOCKS - 1)


def test_the_thread_waits_when_nothing_can_run(node: Node) -> None:
    """A reservation holds the whole pool; the prompt that waits for it must not make the thread spin."""
    node.engine.post(cmd.LinkBeat("p/1"))
    node.engine.post(cmd.Reserve("p/1", 7, request("big", range(1, MAX_LEN - 1)), "router"))
    until(lambda: any(isinstance(out, SendTicket) for out in node.outs))
    waiting = request("small", range(1, 9))
    node.engine.post(cmd.Add(waiting, None, in_place=True))
    until(lambda: node.core.load().waiting == 1)
    turns, since_s = node.turns, time.monotonic()
    until(lambda: node.engine.turn_started_s is None)
    assert node.turns - turns <= 2 + (time.monotonic() - since_s)  # one a second
    assert node.ended(waiting) is None
    node.engine.post(cmd.Abandon("p/1", 7, revoked=False))
    until(lambda: node.ended(waiting))
    assert node.tokens(waiting) == reference(waiting, MAX_LEN)[0]


def test_a_ticket_leaves_after_its_blocks_are_clean(node: Node) -> None:
    node.engine.post(cmd.Reserve("p/1", 7, request("r", range(1, 9)), "router"))
    until(lambda: any(isinstance(out, SendTicket) for out in node.outs))
    ticket = next(out for out in node.outs if isinstance(out, SendTicket))
    assert set(ticket.blocks) <= {block for batch in node.runner.batches for block in batch.clear}


def test_a_peer_that_breaks_the_protocol_loses_its_link_only(node: Node) -> None:
    node.engine.post(cmd.Reserve("p/1", 7, request("big", range(1, MAX_LEN - 1)), "router"))
    node.engine.post(cmd.Reserve("p/1", 8, request("no room", range(1, MAX_LEN - 1)), "router"))
    until(lambda: node.core.load().reserved == 2)
    node.engine.post(cmd.Commit("p/1", 8, MAX_LEN - 2, (1,)))
    until(lambda: any(isinstance(out, Misbehaved) for out in node.outs))
    assert DropLink("p/1") in node.outs
    node.engine.post(cmd.WriterDead("p/1"))
    one = request("after", range(1, 9))
    node.engine.post(cmd.Add(one, None, in_place=True))
    until(lambda: node.ended(one))
    assert node.tokens(one) == reference(one, MAX_LEN)[0]


def test_a_snapshot_agrees_with_the_changes_before_it(node: Node) -> None:
    one = request("r", range(1, 30))
    node.engine.post(cmd.Add(one, None, in_place=True))
    until(lambda: node.ended(one))
    node.engine.post(cmd.Snapshot(5))
    until(lambda: any(isinstance(out, SnapshotOut) for out in node.outs))
    known: set[bytes] = set()
    for out in node.outs:
        if isinstance(out, KvChange):
            known = (known | set(out.events.stored)) - set(out.events.removed)
        if isinstance(out, SnapshotOut):
            assert out.token == 5
            assert set(out.keys) == known
            assert known


def test_an_engine_that_fails_says_so() -> None:
    node = Node()
    node.runner.fails = True
    node.engine.start()
    node.engine.post(cmd.Add(request("r", range(1, 9)), None, in_place=True))
    until(lambda: any(isinstance(out, RuntimeError) for out in node.outs))
    assert isinstance(node.engine.fault, RuntimeError)
    assert not node.engine.alive
