"""The central queue: bounds on nodes, order, early rejection, what may pass whom; and where load goes."""

from __future__ import annotations

from collections import Counter

import pytest

from baton.core.errors import Code
from baton.core.load import LoadReport, Role
from baton.core.prefix import chain, root_key
from baton.router.events import Cancelled, Dispatch, KvChanged, Reject, Tick
from baton.router.machine_config import RouterConfig

from .machine_kit import Bench, load, node, of


def one_slot(**config: object) -> Bench:
    """A pair whose decode node has a batch of one, so that the second request waits at the router."""
    bench = Bench(RouterConfig(decode_slack=0, **config))  # type: ignore[arg-type]
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE, load=load(Role.DECODE, max_running=1)))
    return bench


def order_of(bench: Bench) -> list[str]:
    """Free the slot again and again; who got it."""
    while bench.machine.in_flight:
        bench.step(Cancelled(of(Dispatch, bench.all)[-1].request.id))
    return [dispatch.request.id for dispatch in of(Dispatch, bench.all)]


def test_first_come_first_served_within_a_priority() -> None:
    bench = one_slot()
    for name in "abcd":
        bench.arrive(name)
    assert bench.machine.queued == 3
    assert order_of(bench) == ["a", "b", "c", "d"]


def test_lower_priority_number_goes_first_but_age_counts() -> None:
    bench = one_slot(aging_s=5.0)
    bench.arrive("running")
    bench.arrive("old", priority=1)
    bench.now += 6.0
    bench.arrive("late", priority=0)
    bench.arrive("later", priority=0)
    bench.arrive("urgent", priority=-1)
    assert order_of(bench) == ["running", "urgent", "old", "late", "later"]


def test_full_queue_sheds_the_newcomer_with_a_time_to_come_back() -> None:
    bench = one_slot(max_queued=2)
    for name in "abc":
        assert not of(Reject, bench.arrive(name))
    [reject] = of(Reject, bench.arrive("d"))
    assert reject.request_id == "d"
    assert reject.error.code is Code.RESOURCE_EXHAUSTED
    assert reject.error.retry_after_s is not None
    assert 0.0 < reject.error.retry_after_s <= 60.0
    assert bench.machine.queued == 2


def test_full_queue_sheds_the_last_in_order_not_the_urgent_one() -> None:
    bench = one_slot(max_queued=1)
    bench.arrive("a")
    bench.arrive("b", priority=5)
    assert [r.request_id for r in of(Reject, bench.arrive("urgent", priority=-5))] == ["b"]


def test_request_with_text_is_never_shed_for_a_newcomer() -> None:
    bench = one_slot(max_queued=1)
    bench.arrive("r", priority=5)
    bench.tokens("r", "p", 0, 10)
    full = load(Role.DECODE, max_running=1, running=1)
    bench.join(node("d", Role.DECODE, "d-2", load=full))  # the old one is gone, the new one has no slot
    assert bench.machine.queued == 1
    assert [r.request_id for r in of(Reject, bench.arrive("urgent", priority=-5))] == ["urgent"]


def test_timers_of_one_request_that_fall_due_together_end_it_once() -> None:
    bench = Bench(RouterConfig(no_node_wait_s=1.0))
    bench.arrive("r", deadline_s=1.0)
    bench.arrive("s", deadline_s=1.0)
    assert len(of(Reject, bench.step(Tick(), after_s=5.0))) == 2


def test_a_deadline_that_comes_before_a_node_does_says_which_was_missing() -> None:
    bench = Bench(RouterConfig(no_node_wait_s=10.0))
    bench.join(node("p", Role.PREFILL))
    bench.arrive("r", deadline_s=bench.now + 1.0)
    assert not bench.run_until(bench.now + 0.8)
    [reject] = of(Reject, bench.run_until(bench.now + 0.15))
    assert reject.error.code is Code.UNAVAILABLE
    assert str(reject.error).startswith("no decode node can take it, and none came within 0.9")
    assert reject.error.retry_after_s is not None


def test_a_deadline_that_ends_the_wait_for_room_says_so() -> None:
    bench = one_slot(max_queued=10, max_queue_wait_s=1e9)
    for i in range(4):
        bench.arrive(f"r{i}", deadline_s=None if i < 3 else bench.now + 1.0)
    ended = [reject.error for reject in of(Reject, bench.run_until(bench.now + 1.5))]
    assert [str(error) for error in ended] == [
        "the deadline passed while waiting: the nodes that can take it are full"
    ]


def test_retry_after_follows_the_rate_at_which_the_queue_drains() -> None:
    def retry_after(pace_s: float) -> float:
        bench = one_slot(max_queued=10, max_queue_wait_s=1e9)
        for i in range(11):
            bench.arrive(f"r{i}")
        for i in range(8):
            bench.now += pace_s
            bench.step(Cancelled(f"r{i}"))
            bench.arrive(f"s{i}")
        [reject] = of(Reject, bench.arrive("x"))
        assert reject.error.retry_after_s is not None
        return reject.error.retry_after_s

    assert retry_after(0.5) > 3 * retry_after(0.1)


def test_request_whose_deadline_comes_before_its_turn_is_rejected_early() -> None:
    bench = one_slot()
    for i in range(11):
        bench.arrive(f"r{i}")
    for i in range(6):
        bench.now += 1.0
        bench.step(Cancelled(f"r{i}"))
    [reject] = of(Reject, bench.arrive("x", deadline_s=bench.now + 0.5))
    assert reject.error.code is Code.RESOURCE_EXHAUSTED
    assert "deadline" in reject.error.message


def test_small_requests_pass_one_that_lacks_room_but_not_for_ever() -> None:
    bench = Bench(RouterConfig(starve_s=2.0))
    tight = load(Role.DECODE, blocks_free=10, running=1, max_running=100)
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE, load=tight))
    assert not of(Dispatch, bench.arrive("large", prompt=100))
    assert of(Dispatch, bench.arrive("small", prompt=4))
    bench.step(Cancelled("small"))
    bench.now += 2.5
    assert not of(Dispatch, bench.arrive("late", prompt=4))
    roomy = load(Role.DECODE, 2, blocks_free=100, running=1, max_running=100)
    assert [d.request.id for d in of(Dispatch, bench.report("d", roomy))] == ["large", "late"]


def test_work_on_a_prefill_node_is_bounded() -> None:
    bench = Bench(RouterConfig(max_node_wait_s=0.5))
    roomy = load(Role.DECODE, max_running=1000, blocks_free=100_000, blocks_total=100_000)
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE, load=roomy))
    for i in range(50):
        bench.arrive(f"r{i}", prompt=2000)
    assert 2 <= bench.machine.node_in_flight("p") < 10
    assert bench.machine.queued == 50 - bench.machine.node_in_flight("p")


def test_load_spreads_over_equal_nodes_without_any_report() -> None:
    bench = Bench(RouterConfig(max_node_wait_s=100.0))
    for i in range(4):
        roomy = load(Role.DECODE, max_running=1000)
        bench.join(node(f"p{i}", Role.PREFILL), node(f"d{i}", Role.DECODE, load=roomy))
    for i in range(80):
        bench.arrive(f"r{i}", prompt=100)
    for counts in (
        Counter(d.prefill_node for d in of(Dispatch, bench.all)),
        Counter(d.decode_node for d in of(Dispatch, bench.all)),
    ):
        assert len(counts) == 4
        assert max(counts.values()) <= 2 * min(counts.values())


def test_router_whose_reports_are_stale_still_does_not_herd() -> None:
    """One node looks idle, the others busy, for ever: the idle one fills up in our own books."""
    bench = Bench(RouterConfig(max_node_wait_s=100.0))
    bench.join(node("idle", Role.PREFILL))
    for i in range(3):
        bench.join(node(f"p{i}", Role.PREFILL, load=load(Role.PREFILL, waiting=1, waiting_tokens=500)))
    bench.join(node("d", Role.DECODE, load=load(Role.DECODE, max_running=1000)))
    for i in range(40):
        bench.arrive(f"r{i}", prompt=200)
    counts = Counter(d.prefill_node for d in of(Dispatch, bench.all))
    assert max(counts.values()) <= 16


def test_report_replaces_the_credit_of_what_it_includes() -> None:
    bench = Bench(RouterConfig(report_lag_s=0.02))
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE))
    bench.arrive("a", prompt=400)
    bench.now += 1.0
    bench.report("p", LoadReport(2, Role.PREFILL, waiting=1, waiting_tokens=400, block_size=4))
    bench.arrive("b", prompt=4)
    counted_once = bench.dispatches("b")[0].prediction.queue_s
    assert counted_once == pytest.approx(bench.dispatches("a")[0].prediction.prefill_s, rel=0.5)


def test_the_queue_of_a_node_that_says_nothing_gets_shorter_with_time() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE))
    bench.now += 0.9
    bench.arrive("a", prompt=400)
    work_s = bench.dispatches("a")[0].prediction.prefill_s
    bench.now += 0.75 * work_s
    bench.arrive("b", prompt=4)
    assert bench.dispatches("b")[0].prediction.queue_s == pytest.approx(0.25 * work_s, abs=0.0015)


def test_a_report_that_names_a_prompt_counts_it_once_however_soon_it_comes() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE))
    bench.arrive("a", prompt=400)
    bench.now += 0.001
    bench.report(
        "p", LoadReport(2, Role.PREFILL, waiting=1, waiting_tokens=400, block_size=4, arrived=("a",))
    )
    bench.arrive("b", prompt=4)
    counted_once = bench.dispatches("b")[0].prediction.queue_s
    assert counted_once == pytest.approx(bench.dispatches("a")[0].prediction.prefill_s, rel=0.5)


def test_cached_prefix_attracts_and_counts_only_for_its_salt() -> None:
    bench = Bench()
    bench.join(node("p1", Role.PREFILL), node("p2", Role.PREFILL), node("d", Role.DECODE))
    keys = tuple(chain(root_key(salt="x", revision="w0"), tuple(range(1, 401)), 4))
    bench.step(KvChanged("p2", "p2", stored=keys))
    [hit] = of(Dispatch, bench.arrive("hit", prompt=400, salt="x"))
    assert hit.prefill_node == "p2"
    assert hit.prediction.cached_tokens == 396  # the last token is always computed
    [miss] = of(Dispatch, bench.arrive("miss", prompt=400, salt="y"))
    assert miss.prediction.cached_tokens == 0


def test_cached_prefix_of_a_dead_incarnation_is_forgotten() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL, "one"), node("d", Role.DECODE))
    keys = tuple(chain(root_key(revision="w0"), tuple(range(1, 41)), 4))
    bench.step(KvChanged("p", "one", stored=keys))
    assert bench.machine.nodes(0.0)[0].cached_blocks == 10
    bench.join(node("p", Role.PREFILL, "two"))
    bench.step(KvChanged("p", "one", stored=keys))
    assert [s.cached_blocks for s in bench.machine.nodes(0.0)] == [0, 0]


def test_slow_node_is_left_alone_once_its_reports_say_so() -> None:
    bench = Bench()
    bench.join(node("fast", Role.PREFILL), node("slow", Role.PREFILL))
    bench.join(node("d", Role.DECODE, load=load(Role.DECODE, max_running=1000)))
    for seq in range(2, 40):
        for name, per_token in (("fast", 1e-4), ("slow", 1e-3)):
            samples = ((100, 0, 100 * per_token), (200, 0, 200 * per_token))
            bench.report(name, load(Role.PREFILL, seq, prefill_samples=samples))
    for i in range(10):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}", prompt=300))
        assert dispatch.prefill_node == "fast"
        bench.step(Cancelled(f"r{i}"))
