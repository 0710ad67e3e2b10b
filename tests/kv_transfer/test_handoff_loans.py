"""Cached KV that another node asked for: the machines of a hand-off, and what comes of it at the sink."""

import pytest

from baton.core.errors import InvalidArgument
from baton.core.kvcache import KvCache
from baton.core.node_effects import Fence, FetchOver, SendCommitted, SendRefusal, SendRevoke, SendTicket
from baton.core.request import Request
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from tests.fake_kv import digest
from tests.kv_transfer.handoff_world import World, outcome_of

PROMPT = tuple(range(1, 17))
KEY = ("a", 0)


def lent(world: World, prompt: tuple[int, ...] = PROMPT, name: str = "a") -> str | object:
    process = world.processes[0] if world.processes else world.spawn("p")
    process.lend(Request(name, prompt))
    world.settle()
    return outcome_of(process, (name, 0))


@pytest.mark.parametrize("fences", [False, True])
def test_a_loan_becomes_a_part_of_the_cache(fences: bool) -> None:
    world = World(KvCache(10, 4), fences, source_block=4)
    assert lent(world) == "handed off"
    assert world.fetched == {KEY: [16]}
    assert world.kv.peek(world.keys(PROMPT)) == 4
    assert (world.kv.pool.owned, world.kv.pool.idle) == (0, 4)
    assert world.processes[0].kv.pool.owned == 0
    world.residents_are_right()


def test_only_what_is_missing_is_sent() -> None:
    world = World(KvCache(10, 4), True, source_block=4)
    lent(world, PROMPT[:8], "first")
    process = world.processes[0]
    process.lend(Request("a", PROMPT))
    world.deliver(process)
    world.pump()
    world.deliver(process)
    (pending,) = process.writes
    assert (pending.write.start, pending.write.end) == (8, 16)
    world.settle()
    assert world.fetched[KEY] == [8]
    assert world.kv.peek(world.keys(PROMPT)) == 4
    again = lent(world, PROMPT, "again")
    assert again == "handed off"
    assert world.fetched["again", 0] == [0]


def test_what_was_computed_meanwhile_stays_and_the_rest_is_kept() -> None:
    """The first block's key is known by another block when the loan is committed."""
    world = World(KvCache(10, 4), True, source_block=4)
    process = world.spawn("p")
    process.lend(Request("a", PROMPT[:8]))
    world.deliver(process)
    world.pump()
    (mine,) = world.kv.allocate(1)
    world.memory.clear(world.kv.take_dirty())
    for position in range(4):
        world.memory.write([mine], position, digest(PROMPT[: position + 1]))
    world.kv.publish(world.keys(PROMPT)[0], mine)
    world.settle()
    assert world.kv.index.match(world.keys(PROMPT))[0] == mine
    assert world.kv.peek(world.keys(PROMPT)) == 2
    world.kv.release([mine])
    world.books_agree()
    assert world.kv.pool.owned == 0


def test_who_waits_no_longer_revokes_and_the_blocks_come_back_with_the_promise() -> None:
    world = World(KvCache(10, 4), False, source_block=4)
    process = world.spawn("p")
    process.lend(Request("a", PROMPT))
    world.deliver(process)
    world.pump()
    world.deliver(process)
    world.land(process, process.writes[0], 3)
    world.run(world.sink.abort(world.now, KEY))
    assert world.fetched == {KEY: [0]}
    assert world.kv.pool.quarantined == 4
    assert world.kv.peek(world.keys(PROMPT)) == 0
    world.deliver(process)  # the revoke
    world.fail(process, process.writes[0])
    world.deliver(process)
    assert world.kv.pool.quarantined == 0
    assert process.kv.pool.owned == 0
    world.books_agree()


@pytest.mark.parametrize("fences", [False, True])
def test_a_lender_that_dies_leaves_nothing(fences: bool) -> None:
    world = World(KvCache(10, 4), fences, source_block=4)
    process = world.spawn("p")
    process.lend(Request("a", PROMPT))
    world.deliver(process)
    world.pump()
    world.deliver(process)
    world.land(process, process.writes[0], 5)
    world.kill(process)
    world.notice_death(process)
    assert world.fetched == {KEY: [0]}
    assert world.kv.pool.owned == world.kv.pool.quarantined == 0
    assert world.kv.peek(world.keys(PROMPT)) == 0


def test_a_sink_that_is_lost_leaves_nothing_at_the_lender() -> None:
    world = World(KvCache(10, 4), False, source_block=4)
    process = world.spawn("p")
    process.lend(Request("a", PROMPT))
    world.deliver(process)
    world.pump()
    world.deliver(process)
    process.lose_stream()
    assert process.kv.pool.owned == 4, "a write still reads them"
    world.fail(process, process.writes[0])
    assert process.kv.pool.owned == 0


def sink_with_ticket() -> HandoffSink:
    sink = HandoffSink(KvCache(10, 4), SinkLimits(1000, 97), "r")
    world = World(KvCache(10, 4), True, 4)
    assert sink.offer(0.0, "p/1", 7, Request("a", PROMPT), world.keys(PROMPT)) == []
    (ticket,) = sink.pump(0.0)
    assert isinstance(ticket, SendTicket)
    return sink


def test_a_commit_of_a_loan_brings_all_of_it_and_no_output() -> None:
    effects = sink_with_ticket().commit(0.0, "p/1", 7, 16, ())
    assert [type(effect) for effect in effects] == [Fence, FetchOver, SendCommitted]
    for tokens, outputs in ((12, ()), (16, (5,))):
        refusal, *rest = sink_with_ticket().commit(0.0, "p/1", 7, tokens, outputs)
        assert isinstance(refusal, SendRefusal)
        assert isinstance(refusal.error, InvalidArgument)
        assert [type(effect) for effect in rest] == [Fence, FetchOver]


def test_a_lease_that_ends_ends_the_loan() -> None:
    sink = sink_with_ticket()
    effects = sink.expire(10.0)
    assert FetchOver(KEY, 0) in effects
    assert sink.stats().quarantined_transfers == 1
    assert sink.fenced("p/1", 7) == []
    assert sink.idle


def test_a_loan_without_room_waits_and_may_be_given_up() -> None:
    kv = KvCache(10, 4)
    sink = HandoffSink(kv, SinkLimits(1000, 97), "r")
    taken = kv.allocate(8)
    world = World(KvCache(10, 4), True, 4)
    sink.offer(0.0, "p/1", 7, Request("a", PROMPT), world.keys(PROMPT))
    assert sink.pump(0.0) == []
    refusal, over = sink.abort(0.0, KEY)
    assert isinstance(refusal, SendRefusal)
    assert over == FetchOver(KEY, 0)
    assert not any(isinstance(effect, SendRevoke) for effect in (refusal, over))
    kv.release(taken)
    assert sink.idle
