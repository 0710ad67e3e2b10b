"""Field reports about hand-offs, replayed on the two machines: KV1, KV3, CAN1, LIFE1."""

import pytest

from baton.core.kvcache import KvCache
from baton.core.request import Request
from tests.kv_transfer.handoff_world import World, outcome_of

KEY_A, KEY_B = ("a", 0), ("b", 0)


class LeakyKv(KvCache):
    """A pool without quarantine: what KV1 reports."""

    def quarantine(self, blocks) -> None:
        self.release(blocks)

    def absolve(self, blocks) -> None:
        pass


def cancelled_while_written(kv: KvCache, *, fences: bool) -> None:
    """KV1: A is cancelled at decode with its KV half written; B wants the same blocks at once; then the rest
    of A's KV arrives."""
    world = World(kv, fences, source_block=4)
    one, other = world.spawn("p1"), world.spawn("p2")
    one.start(Request("a", tuple(range(20))))
    other.start(Request("b", tuple(range(40, 60))))
    world.deliver(one)
    world.pump()
    world.deliver(one)
    one.compute(one.prompts[KEY_A], 100)
    (late,) = one.writes
    world.land(one, late, 4)
    world.run(world.sink.abort(world.now, KEY_A))
    other.compute(other.prompts[KEY_B], 100)
    for _ in range(3):
        world.deliver(other)
        world.pump()
        for pending in list(other.writes):
            world.land(other, pending, 100)
    world.land(one, late, 100)
    world.residents_are_right()
    one.abort(KEY_A)
    for _ in range(4):  # the network catches up
        for process in (one, other):
            world.deliver(process)
            for pending in list(process.writes):
                world.land(process, pending, 100)
        world.pump()
        world.residents_are_right()
    assert world.admitted[KEY_B] == 1
    assert outcome_of(other, KEY_B) == "handed off"
    for resident in list(world.residents):
        world.let_go(resident)
    world.books_agree()
    assert kv.pool.owned == kv.pool.quarantined == 0


@pytest.mark.parametrize("fences", [False, True])
def test_kv1_late_writes_spoil_nobody(fences: bool) -> None:
    cancelled_while_written(KvCache(7, 4), fences=fences)


def test_kv1_guard_without_quarantine_it_does() -> None:
    with pytest.raises(AssertionError, match=r"wrong KV|after it was free"):
        cancelled_while_written(LeakyKv(7, 4), fences=False)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 16), (16, 4), (3, 4)])
@pytest.mark.parametrize("warm", [False, True])
def test_kv3_every_length_arrives_whole(sizes: tuple[int, int], warm: bool) -> None:
    source, target = sizes
    for length in sorted({1, 2, *(n for size in sizes for n in (size - 1, size, size + 1, 2 * size + 1))}):
        world = World(KvCache(40, target), False, source)
        process = world.spawn("p")
        for name in ("first", "again") if warm else ("first",):
            process.start(Request(name, tuple(range(1, length + 1))))
            world.settle()
            assert outcome_of(process, (name, 0)) == "handed off", (length, name)
        assert world.kv.pool.owned == 0


def test_only_what_decode_lacks_is_sent() -> None:
    world = World(KvCache(40, 4), False, 4)
    process = world.spawn("p")
    process.start(Request("a", tuple(range(17))))
    world.settle()
    process.start(Request("b", (*range(16), 90)))
    world.settle()
    sent = [said[0].payload_bytes for said in process.outcomes.values()]
    assert sent == [17, 1]
    process.start(Request("c", tuple(range(16))))
    world.settle()
    assert process.outcomes["c", 0][0].payload_bytes == 0


def test_whole_blocks_leave_while_later_chunks_compute() -> None:
    world = World(KvCache(40, 4), False, 4)
    process = world.spawn("p")
    process.start(Request("a", tuple(range(14))))
    process.compute(process.prompts[KEY_A], 6)
    assert not process.writes, "no ticket yet"
    world.deliver(process)
    world.pump()
    world.deliver(process)
    process.compute(process.prompts[KEY_A], 3)
    process.compute(process.prompts[KEY_A], 5)
    spans = [(pending.write.start, pending.write.end) for pending in process.writes]
    assert spans == [(0, 4), (4, 8), (8, 14)]


@pytest.mark.parametrize("deliveries", range(4))
def test_can1_cancel_around_the_end_of_prefill(deliveries: int) -> None:
    """However far the hand-off is, prefill's blocks are back without a lease, and a decode node that heard
    of the cancel before the commit admits nothing."""
    world = World(KvCache(40, 4), False, 4)
    process = world.spawn("p")
    process.start(Request("a", tuple(range(9))))
    process.compute(process.prompts[KEY_A], 100)
    for _ in range(deliveries):
        world.deliver(process)
        world.pump()
        for pending in list(process.writes):
            world.land(process, pending, 100)
    before = world.admitted[KEY_A]
    for _ in range(2):
        process.abort(KEY_A)
        world.run(world.sink.abort(world.now, KEY_A))
    assert process.kv.pool.owned == 0, "nothing is read any more"
    world.settle()
    assert world.now < world.lease_s
    assert world.admitted[KEY_A] == before == (deliveries > 2)
    assert world.kv.pool.owned == world.kv.pool.quarantined == 0


@pytest.mark.parametrize("fences", [False, True])
def test_life1_a_dead_prefill_node_leaves_nothing_behind(fences: bool) -> None:
    world = World(KvCache(13, 4), fences, 4)
    healthy = world.spawn("healthy")
    for round_ in range(30):
        doomed = world.spawn("doomed")
        for i in range(3):
            doomed.start(Request(f"{round_}.{i}", tuple(range(100 + i, 110 + i))))
            world.deliver(doomed)
        world.pump()
        for _ in range(3):
            world.deliver(doomed)
        for prompt in list(doomed.prompts.values()):
            doomed.compute(prompt, 9)
        world.run(world.sink.abort(world.now, (f"{round_}.0", 0)))
        world.kill(doomed)
        world.wait(world.lease_s, beats=True)
        assert world.sink.stats().reserved == 0, "the lease has ended them"
        if not fences:
            assert world.kv.pool.quarantined == 9, "until the process is known to be dead"
        world.notice_death(doomed)
        world.books_agree()
        assert world.kv.pool.owned == world.kv.pool.quarantined == 0
        healthy.start(Request(f"ok{round_}", tuple(range(round_, round_ + 40))))
        world.settle()
        assert outcome_of(healthy, (f"ok{round_}", 0)) == "handed off"
        assert world.sink.commit(world.now, doomed.name, 1000 * world.births, 10, (1,)), "a late notice"


def test_the_same_writer_back_again_promises_that_its_writes_are_over() -> None:
    world = World(KvCache(13, 4), False, 4)
    process = world.spawn("p")
    process.start(Request("a", tuple(range(10))))
    world.deliver(process)
    world.pump()
    world.deliver(process)
    process.compute(process.prompts[KEY_A], 10)
    world.lose(process)
    assert world.kv.pool.quarantined == 3
    assert not world.reconnect(process), "a write is still under way"
    world.land(process, process.writes[0], 100)
    assert process.kv.pool.owned == 0
    assert world.reconnect(process)
    assert world.kv.pool.quarantined == world.kv.pool.owned == 0
