"""One node fetches from another what is cached there: both hearts, the machines of the hand-off between them,
and a network that a test holds up where it likes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from baton.core.batch import StepOutput
from baton.core.errors import NotFound, ResourceExhausted
from baton.core.kvcache import KvCache
from baton.core.load import Role
from baton.core.node_effects import (
    Ended,
    FetchOver,
    SendCommitted,
    SendRefusal,
    SendRevoke,
    SendTicket,
    Started,
    TokensOut,
)
from baton.core.prefix import chain, root_key
from baton.core.request import Request
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.kv_transfer import handoff
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.kv_transfer.handoff_source import HandoffSource
from baton.kv_transfer.writes import Completion, Outcome, Write
from baton.node import commands as cmd
from baton.node.core import CoreLimits, Lent, NodeCore, Out
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from baton.sim.check import check_references
from tests.fake_kv import FakeMemory, next_token, run

BLOCK, BLOCKS, MAX_LEN = 4, 41, 160
PROMPT = tuple(range(1, 31))
FIRST_TURN = PROMPT[:17]
LINK, LOAN = "a/1", ("fetch/second", 0)


class Node:
    def __init__(self, *, caching: bool = True) -> None:
        kv = KvCache(BLOCKS, BLOCK, prefix_caching=caching)
        prefill = PrefillScheduler(kv, PrefillLimits(MAX_LEN), "r")
        decode = DecodeScheduler(kv, DecodeLimits(MAX_LEN), "r", prefill.reclaim)
        sink = HandoffSink(kv, SinkLimits(MAX_LEN, 97), "r")
        self.core = NodeCore(kv, prefill, decode, sink, Role.BOTH, CoreLimits(64, 8))
        self.memory = FakeMemory(BLOCKS, BLOCK)
        self.computed: list[int] = []  # prompt and answer tokens of each step
        self.outs: list[Out] = []

    def turn(self, now: float, *commands: cmd.Command) -> list[Out]:
        core = self.core
        for command in commands:
            core.handle(now, command)
        core.tick(now)
        rows = core.schedule(now)
        self.memory.clear(core.take_dirty())
        if rows:
            self.computed.append(sum(row.length for row in rows))
            core.complete(now, StepOutput(tuple(run(self.memory, rows).values()), duration_s=0.001))
        outs = core.drain(report=False)
        self.outs += outs
        core.check()
        check_references(core)
        return outs

    def answer(self, name: str) -> list[int]:
        made = [out for out in self.outs if isinstance(out, TokensOut) and out.key[0] == name]
        return [token for out in made for token in out.token_ids]

    def one(self, kind: type[Out]) -> Out:
        (found,) = [out for out in self.outs if isinstance(out, kind)]
        return found


class Pair:
    """a has computed the first turn; b is asked for the second, and asks a. `carry` brings what is on its
    way."""

    def __init__(self, *, caching: bool = True, first: tuple[int, ...] = FIRST_TURN) -> None:
        self.now = 0.0
        self.a, self.b = Node(), Node(caching=caching)
        self.source = HandoffSource(BLOCK)
        self.mail: deque[Callable[[], None]] = deque()
        self.a.turn(0.0, cmd.Add(Request("first", first, max_tokens=4), None, in_place=True))
        while self.a.core.has_work:
            self.a.turn(0.0)
        self.a.computed.clear()

    def second(
        self,
        tokens: int = 20,
        patience_s: float = 1.0,
        lender: str = LINK,
        deadline_s: float | None = None,
    ) -> None:
        request = Request("second", PROMPT, max_tokens=3)
        fetch = cmd.Fetch(lender, tokens, patience_s)
        self.to_b(cmd.Add(request, deadline_s, True, fetch))

    def lend(self, tokens: int = 20) -> Lent:
        keys = tuple(chain(root_key(revision="r"), PROMPT[:tokens], BLOCK))
        self.to_a(cmd.Lend(LOAN, keys))
        lent = self.a.one(Lent)
        assert isinstance(lent, Lent)
        if lent.blocks:
            tokens = len(lent.blocks) * BLOCK
            loan = handoff.Loan(("second", 0), tokens, keys[len(lent.blocks) - 1])
            peer = handoff.PeerPool(BLOCK, BLOCKS)
            self.run(self.source.lend(self.now, LINK, peer, LOAN, loan, lent.blocks))
        return lent

    def to_a(self, *commands: cmd.Command) -> None:
        self.a.turn(self.now, *commands)

    def to_b(self, *commands: cmd.Command) -> None:
        for out in self.b.turn(self.now, *commands):
            match out:
                case SendTicket(_, i, cached, blocks):
                    ticket = handoff.Ticket(LINK, i, cached, blocks)
                    self.mail.append(lambda t=ticket: self.run(self.source.ticket(self.now, t)))
                case SendRefusal(_, i, error):
                    self.mail.append(lambda i=i, e=error: self.run(self.source.refused(self.now, LINK, i, e)))
                case SendCommitted(_, i):
                    self.mail.append(lambda i=i: self.run(self.source.committed(self.now, LINK, i)))
                case SendRevoke(_, i):
                    self.mail.append(lambda i=i: self.run(self.source.revoke(self.now, LINK, i)))

    def run(self, effects: list[handoff.SourceEffect]) -> None:
        self.source.check()
        for effect in effects:
            match effect:
                case handoff.SendOffer(link, i, loan):
                    self.mail.append(lambda to=link, i=i, o=loan: self.to_b(cmd.Offer(to, i, o)))
                case handoff.SubmitWrite(_, write):
                    self.mail.append(lambda w=write: self.land(w))
                case handoff.SendCommit(link, i, tokens, ids):
                    self.mail.append(lambda to=link, i=i, t=tokens, o=ids: self.to_b(cmd.Commit(to, i, t, o)))
                case handoff.SendAbandon(link, i):
                    self.mail.append(lambda to=link, i=i: self.to_b(cmd.Abandon(to, i, False)))
                case handoff.SendRevoked(link, i):
                    self.mail.append(lambda to=link, i=i: self.to_b(cmd.Abandon(to, i, True)))
                case handoff.Release(key):
                    self.to_a(cmd.ExportEnded(key))

    def land(self, write: Write) -> None:
        for position in range(write.start, write.end):
            source = write.src_blocks[(position - write.src_first) // BLOCK]
            target = write.dst_blocks[(position - write.dst_first) // BLOCK]
            at = position % BLOCK
            self.b.memory.cells[target][at] = self.a.memory.cells[source][at]
        done = Completion(write.write_id, write.transfer_id, Outcome.APPLIED, write.end - write.start)
        self.run(self.source.completion(self.now, done))

    def carry(self, messages: int = 100) -> None:
        for _ in range(messages):
            if not self.mail:
                break
            self.mail.popleft()()

    def finish(self) -> None:
        """The second turn's answer is what it must be, whatever came of the fetch, and nothing is left."""
        for _ in range(100):
            self.carry()
            self.to_b()
        history = list(PROMPT)
        for _ in range(3):
            history.append(next_token(history))
        assert self.b.answer("second") == history[len(PROMPT) :]
        for node in (self.a, self.b):
            pool = node.core.kv.pool
            assert pool.owned == pool.quarantined == 0
            assert not node.core.has_work
            assert node.core.load().exporting == node.core.load().reserved == 0

    @property
    def started(self) -> Started:
        return next(out for out in self.b.outs if isinstance(out, Started))


def test_what_the_other_node_has_is_not_computed() -> None:
    pair = Pair()
    pair.second()
    pair.lend()
    assert pair.a.core.load().exporting == 1
    pair.carry()
    assert pair.b.one(FetchOver) == FetchOver(("second", 0), 16)
    pair.finish()
    assert (pair.started.cached_tokens, pair.started.fetched_tokens) == (16, 16)
    assert pair.b.computed == [14, 1, 1]
    assert pair.a.computed == []


def test_an_answer_of_an_earlier_turn_is_lent_as_well() -> None:
    """The second prompt continues with what the first was answered."""
    first = PROMPT[:14]
    history = list(first)
    for _ in range(4):
        history.append(next_token(history))
    pair = Pair(first=first)
    keys = tuple(chain(root_key(revision="r"), history, BLOCK))
    assert pair.a.core.kv.peek(keys) == 4  # 17 of its 18 tokens have KV


def test_others_go_first_while_it_waits_and_its_patience_is_bounded() -> None:
    pair = Pair()
    pair.second(patience_s=1.0)
    pair.to_b(cmd.Add(Request("other", (70,) * 9, max_tokens=1), None, in_place=True))
    assert pair.b.computed == [9]
    assert pair.b.core.next_wakeup() == 1.0
    pair.now = 0.9
    pair.to_b()
    assert pair.b.computed == [9]
    pair.now = 1.0
    pair.to_b()
    assert pair.b.computed == [9, 30]
    assert pair.started.key[0] == "other"
    pair.finish()


def test_patience_begins_with_its_turn() -> None:
    """A batch that has no place for it anyway does not use its patience up."""
    pair = Pair()
    pair.now = 5.0
    pair.second(patience_s=1.0)
    assert pair.b.core.next_wakeup() == 6.0


@pytest.mark.parametrize("messages", range(6))
def test_who_is_impatient_in_the_middle_computes_it_all(messages: int) -> None:
    pair = Pair()
    pair.second(patience_s=1.0)
    pair.lend()
    pair.carry(messages)
    pair.now = 2.0
    pair.to_b()
    pair.finish()
    came = pair.b.one(FetchOver) if messages else FetchOver(("second", 0), 0)
    assert pair.b.computed[0] == (14 if came.tokens else 30)


@pytest.mark.parametrize("messages", range(5))
def test_a_cancel_in_the_middle_leaves_nothing(messages: int) -> None:
    pair = Pair()
    pair.second()
    pair.lend()
    pair.carry(messages)
    pair.to_b(cmd.AbortKeys((("second", 0),)))
    for _ in range(5):
        pair.carry()
        pair.to_b()
    assert isinstance(pair.b.one(Ended), Ended)
    for node in (pair.a, pair.b):
        assert node.core.kv.pool.owned == node.core.kv.pool.quarantined == 0


@pytest.mark.parametrize("messages", range(1, 3))
def test_a_deadline_that_passes_in_the_middle_frees_what_was_reserved_at_once(messages: int) -> None:
    pair = Pair()
    pair.second(deadline_s=0.5)
    pair.lend()
    pair.carry(messages)
    assert pair.b.core.kv.pool.owned
    pair.now = 0.6
    pair.to_b()
    assert isinstance(pair.b.one(Ended), Ended)
    assert pair.b.one(FetchOver) == FetchOver(("second", 0), 0)
    pair.carry()
    for node in (pair.a, pair.b):
        assert node.core.kv.pool.owned == node.core.kv.pool.quarantined == 0


def test_a_lender_without_it_says_so() -> None:
    pair = Pair()
    kv = pair.a.core.kv
    kv.release(kv.allocate(40))  # evicts all
    pair.second()
    assert isinstance(pair.lend().error, NotFound)
    pair.to_b(cmd.FetchFailed(("second", 0)))
    assert pair.b.computed == [30]


def test_a_lender_that_needs_its_blocks_lends_none() -> None:
    pair = Pair(first=PROMPT * 2)
    keys = tuple(chain(root_key(revision="r"), PROMPT * 2, BLOCK))
    lent = pair.a.turn(0.0, cmd.Lend(LOAN, keys))[0]
    assert isinstance(lent, Lent)
    assert isinstance(lent.error, ResourceExhausted)
    assert pair.a.core.kv.pool.owned == 0


def offered(pair: Pair, link: str = LINK, tokens: int = 16, last: int = 3) -> SendRefusal | None:
    keys = tuple(chain(root_key(revision="r"), PROMPT, BLOCK))
    outs = pair.b.turn(0.0, cmd.Offer(link, 9, handoff.Loan(("second", 0), tokens, keys[last])))
    return next((out for out in outs if isinstance(out, SendRefusal)), None)


def test_only_what_was_asked_for_is_taken() -> None:
    pair = Pair()
    assert offered(pair) is not None
    pair.second()
    for wrong in ({"link": "c/1"}, {"tokens": 15}, {"tokens": 24, "last": 5}, {"last": 2}, {"tokens": 0}):
        refusal = offered(pair, **wrong)
        assert refusal is not None, wrong
        assert isinstance(refusal.error, NotFound)
    assert offered(pair) is None


def test_a_node_that_caches_nothing_does_not_wait() -> None:
    pair = Pair(caching=False)
    pair.second()
    assert pair.b.computed == [30]
    pair.lend()
    pair.finish()
