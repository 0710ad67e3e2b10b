"""Latency targets: what a choice makes of them, in what order the queue goes, who is turned away."""

from __future__ import annotations

from collections import Counter

import pytest

from baton.core.errors import Code
from baton.core.load import Role
from baton.core.prefix import chain, root_key
from baton.core.request import Slo
from baton.router.answers import ENOUGH, KEEP, PRIOR, AnswerLengths
from baton.router.events import Cancelled, Dispatch, KvChanged, Reject
from baton.router.machine_config import RouterConfig

from .machine_kit import Bench, load, node, of

SLOW_STEPS = tuple((rows, 100 * rows, 0.01 * rows) for rows in (1, 2, 4, 8, 16) * 8)  # 10 ms for each row
SLOW_PROMPTS = tuple((tokens, 0, 0.001 * tokens) for tokens in (100, 200, 400, 800, 1600) * 8)  # 1 ms a token


def measured(role: Role, **fields: object):  # type: ignore[no-untyped-def]
    return load(role, 2, decode_samples=SLOW_STEPS, prefill_samples=SLOW_PROMPTS, **fields)


def bench_of(config: RouterConfig, *nodes: tuple[str, Role], **fields: object) -> Bench:
    """Nodes whose pace is known: 1 ms for a prompt token, 10 ms for a decode row."""
    bench = Bench(config)
    for name, role in nodes:
        bench.join(node(name, role))
        bench.report(name, measured(role, **fields))
    return bench


P, D = ("p", Role.PREFILL), ("d", Role.DECODE)


def test_of_eight_short_requests_at_once_most_go_to_the_idle_decode_node() -> None:
    """SCH2: four long streams on one, none on the other; all eight transfers come from one prefill node."""
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d0", Role.DECODE), node("d1", Role.DECODE))
    busy = load(Role.DECODE, 2, running=4, context_tokens=2000)
    bench.report("d0", busy)
    for i in range(8):
        bench.arrive(f"r{i}", prompt=16)
    for i in range(8):  # those that waited for the prefill node follow as it gets through
        bench.tokens(f"r{i}", "p", 0, 1)
        bench.handed_off(f"r{i}", "p")
    counts = Counter(dispatch.decode_node for dispatch in of(Dispatch, bench.all))
    assert counts.total() == 8
    assert counts["d1"] >= 6, counts


def test_a_hand_off_waits_for_those_before_it_on_the_same_link() -> None:
    bench = Bench(RouterConfig(max_node_wait_s=1e9))
    slow = tuple((mb << 20, 1.0 * mb) for mb in (1, 2, 4, 8) * 8)  # 1 MiB/s
    bench.join(node("p", Role.PREFILL), node("d", Role.DECODE))
    bench.report("p", load(Role.PREFILL, 2, transfer_samples=slow))
    exposed = []
    for i in range(3):
        [dispatch] = of(Dispatch, bench.arrive(f"r{i}", prompt=1000))  # 1 MB of KV each
        exposed.append(dispatch.prediction.transfer_s)
    assert exposed[1] > exposed[0] + 0.02
    assert exposed[2] > exposed[1] + 0.02


def test_a_tight_target_avoids_a_node_whose_predictions_do_not_hold() -> None:
    """Both take 0.3 s by their fits, one a little less; but every other time it took three times that."""
    bench = bench_of(RouterConfig(), ("p1", Role.PREFILL), ("p2", Role.PREFILL), D)
    erratic = bench.machine._state.registry.get("p2")
    assert erratic is not None
    for i in range(64):
        erratic.learn_ttft(0.3 if i % 2 else 0.9, 0.3, bench.now)
    bench.report("p1", load(Role.PREFILL, 3, waiting_tokens=30))
    [loose] = of(Dispatch, bench.arrive("loose", prompt=300, slo=Slo(ttft_s=9.0)))
    bench.step(Cancelled("loose"))
    [tight] = of(Dispatch, bench.arrive("tight", prompt=300, slo=Slo(ttft_s=0.6)))
    assert (loose.prefill_node, tight.prefill_node) == ("p2", "p1")


def test_hot_prefix_is_computed_again_elsewhere_once_its_queue_costs_more() -> None:
    """No rule replicates: pricing the queue against the saved seconds does."""
    bench = bench_of(RouterConfig(), ("p1", Role.PREFILL), ("p2", Role.PREFILL), D)
    keys = tuple(chain(root_key(revision="w0"), tuple(range(1, 401)), 4))
    bench.step(KvChanged("p1", "p1", stored=keys))
    sent = []
    for i in range(12):
        bench.arrive(f"r{i}", prompt=500)
        sent = [dispatch.prefill_node for dispatch in of(Dispatch, bench.all)]
    first_elsewhere = sent.index("p2")
    assert sent[:first_elsewhere] == ["p1"] * first_elsewhere
    assert 2 <= first_elsewhere <= 6  # 0.1 s each at the holder against 0.5 s


def test_a_prefix_on_the_decode_node_lessens_the_transfer() -> None:
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("d0", Role.DECODE), node("d1", Role.DECODE))
    slow = tuple((mb << 20, 0.1 * mb) for mb in (1, 2, 4, 8) * 8)
    bench.report("p", load(Role.PREFILL, 2, transfer_samples=slow))
    keys = tuple(chain(root_key(revision="w0"), tuple(range(1, 2001)), 4))
    bench.step(KvChanged("d1", "d1", stored=keys))
    [dispatch] = of(Dispatch, bench.arrive("r", prompt=2000))
    assert dispatch.decode_node == "d1"


@pytest.mark.parametrize(("prompt", "where"), [(20, "b"), (3000, "p")])
def test_short_prompts_are_computed_where_they_are_decoded(prompt: int, where: str) -> None:
    """A hand-off costs 50 ms; a long prompt would hold up the four that the node decodes."""
    bench = Bench()
    bench.join(node("p", Role.PREFILL), node("b", Role.BOTH))
    slow = tuple((mb << 20, 0.05 + 0.001 * mb) for mb in (1, 2, 4, 8) * 8)
    bench.report("p", load(Role.PREFILL, 2, transfer_samples=slow, prefill_samples=SLOW_PROMPTS))
    bench.report("b", load(Role.BOTH, 2, running=4, context_tokens=400, prefill_samples=SLOW_PROMPTS))
    [dispatch] = of(Dispatch, bench.arrive("r", prompt=prompt))
    assert (dispatch.prefill_node, dispatch.decode_node) == (where, "b")


@pytest.mark.parametrize(("answers", "where"), [(2, "b1"), (400, "b2")])
def test_answers_that_are_over_soon_are_decoded_where_their_prompt_is_computed(
    answers: int, where: str
) -> None:
    """b2 has fewer answers, but prompts, too: a step of theirs would keep the second token waiting."""
    bench = bench_of(RouterConfig(), ("b1", Role.BOTH), ("b2", Role.BOTH))
    for _ in range(32):
        bench.machine._state.learn_output(answers)
    bench.report("b1", load(Role.BOTH, 3, running=4, context_tokens=400))
    [long] = of(Dispatch, bench.arrive("long", prompt=3000, slo=Slo(tpot_s=0.1)))
    assert (long.prefill_node, long.decode_node) == ("b2", "b2")
    [dispatch] = of(Dispatch, bench.arrive("r", prompt=200, slo=Slo(tpot_s=0.1)))
    assert (dispatch.prefill_node, dispatch.decode_node) == ("b1", where)


def test_what_answers_are_like_is_told_by_the_latest() -> None:
    answers = AnswerLengths()
    for tokens in range(ENOUGH - 1):
        answers.add(tokens)
    assert answers.usual == PRIOR
    for i in range(2 * KEEP):
        answers.add(10 * (1 + i % 5))
    assert answers.usual == (10, 20, 30, 40, 50)


def test_nothing_waits_on_a_node_behind_a_long_prompt() -> None:
    """It stays where it can still go elsewhere, until the node is about to be free."""
    bench = bench_of(RouterConfig(max_node_wait_s=0.2), P, D)
    assert of(Dispatch, bench.arrive("long", prompt=3000))
    assert not of(Dispatch, bench.arrive("next", prompt=100))
    bench.now += 1.0
    bench.report("p", load(Role.PREFILL, 3, running=1, waiting_tokens=150, waiting_work=0))
    assert [dispatch.request.id for dispatch in of(Dispatch, bench.all)] == ["long", "next"]


def test_nobody_is_sent_where_more_would_miss_their_target_than_it_gains() -> None:
    """10 ms for each row and 45 ms to keep: some fit, one more waits, and goes when one of them has left."""
    bench = bench_of(RouterConfig(), P, D)
    sent = 0
    while of(Dispatch, bench.arrive(f"r{sent}", slo=Slo(tpot_s=0.045))):
        sent += 1
        bench.tokens(f"r{sent - 1}", "p", 0, 1)
        bench.handed_off(f"r{sent - 1}", "p")
        bench.report("d", load(Role.DECODE, 2 + sent, running=sent, context_tokens=8 * sent))
    assert 2 <= sent <= 4
    bench.step(Cancelled("r0"))
    bench.report("d", load(Role.DECODE, 9, running=sent - 1))
    assert bench.dispatches(f"r{sent}")


def test_what_harms_others_does_not_wait_for_ever() -> None:
    bench = bench_of(RouterConfig(late_wait_s=1.0), P, D)
    sent = 0
    while of(Dispatch, bench.arrive(f"r{sent}", slo=Slo(tpot_s=0.045))):
        sent += 1
        bench.tokens(f"r{sent - 1}", "p", 0, 1)
        bench.handed_off(f"r{sent - 1}", "p")
        bench.report("d", load(Role.DECODE, 2 + sent, running=sent, context_tokens=8 * sent))
    bench.now += 1.5
    bench.report("d", load(Role.DECODE, 9, running=sent, context_tokens=8 * sent))
    assert bench.dispatches(f"r{sent}")


def queue_of(bench: Bench) -> list[str]:
    """Get the node through its work again and again; in which order requests were sent."""
    while bench.machine.in_flight:
        last = of(Dispatch, bench.all)[-1].request.id
        for name in {d.request.id for d in of(Dispatch, bench.all)} - {last}:
            bench.step(Cancelled(name))
        bench.step(Cancelled(last))
    return [dispatch.request.id for dispatch in of(Dispatch, bench.all)]


def test_what_cannot_be_on_time_goes_behind_what_still_can() -> None:
    """0.9 s each on a node that is busy; three of five can make 3 s, and the long one is not among them."""
    bench = bench_of(RouterConfig(max_node_wait_s=0.0), P, D)
    bench.arrive("a", prompt=1000)
    bench.arrive("b", prompt=1000)
    bench.arrive("long", prompt=2500, slo=Slo(ttft_s=4.0))
    for i in range(3):
        bench.arrive(f"s{i}", prompt=400, slo=Slo(ttft_s=4.0))
    bench.now += 0.1
    assert queue_of(bench)[-1] == "long"


def test_what_waits_in_vain_turns_no_newcomer_away() -> None:
    """A minute of work lies behind; who can be on time does not wait for it."""
    bench = bench_of(RouterConfig(max_node_wait_s=0.0, max_queue_wait_s=20.0), P, D)
    for i in range(20):
        bench.arrive(f"late{i}", prompt=3000, slo=Slo(ttft_s=0.5))
        bench.now += 0.1
    assert bench.machine.queued >= 6
    assert not of(Reject, bench.arrive("timely", prompt=20, slo=Slo(ttft_s=30.0)))
    assert of(Reject, bench.arrive("later", prompt=3000, slo=Slo(ttft_s=0.5)))


def test_in_order_of_arrival_nothing_passes() -> None:
    bench = bench_of(RouterConfig(max_node_wait_s=0.0, order="fcfs"), P, D)
    names = ["a", "b", "long", "s"]
    for name in names:
        bench.arrive(name, prompt=2500 if name == "long" else 400, slo=Slo(ttft_s=3.0))
    bench.now += 0.1
    assert queue_of(bench) == names


def test_the_configured_target_counts_for_who_brings_none() -> None:
    bench = bench_of(RouterConfig(ttft_s=1.0, tpot_s=0.2), P, D)
    [dispatch] = of(Dispatch, bench.arrive("r", slo=Slo(tpot_s=0.1)))
    assert dispatch.request.slo == Slo(1.0, 0.1)


def test_the_node_is_told_how_long_a_request_waited() -> None:
    bench = Bench()
    bench.arrive("r")
    bench.now += 2.0
    bench.one_of_each()
    [dispatch] = bench.dispatches("r")
    assert dispatch.request.waited_s == pytest.approx(2.0, abs=0.01)


def test_admission_turns_away_at_once_who_would_be_late_and_nobody_without_targets() -> None:
    bench = bench_of(RouterConfig(admission="reject", max_node_wait_s=0.0), P, D)
    for i in range(4):
        assert not of(Reject, bench.arrive(f"r{i}", prompt=1000))
    [reject] = of(Reject, bench.arrive("late", prompt=1000, slo=Slo(ttft_s=1.0)))
    assert reject.error.code is Code.RESOURCE_EXHAUSTED
    assert reject.error.retry_after_s is not None
    assert reject.error.retry_after_s > 0.0
    assert not of(Reject, bench.arrive("anytime", prompt=1000))


def test_admission_looks_at_decode_as_it_will_be() -> None:
    bench = bench_of(RouterConfig(admission="reject"), P, D)
    bench.report("d", load(Role.DECODE, 3, running=7, context_tokens=70))
    [reject] = of(Reject, bench.arrive("slow", slo=Slo(tpot_s=0.04)))
    assert reject.error.code is Code.RESOURCE_EXHAUSTED
    assert of(Dispatch, bench.arrive("fine", slo=Slo(tpot_s=0.2)))


def test_what_waits_is_turned_away_once_it_cannot_be_on_time() -> None:
    bench = bench_of(RouterConfig(admission="reject", max_node_wait_s=0.0), P, D)
    for i in range(3):
        bench.arrive(f"r{i}", prompt=1000)
    assert not of(Reject, bench.arrive("hopes", prompt=100, slo=Slo(ttft_s=4.0)))
    bench.now += 5.0
    rejects = of(Reject, bench.report("p", load(Role.PREFILL, 3, waiting=3, waiting_tokens=3000)))
    assert [reject.request_id for reject in rejects] == ["hopes"]
    assert rejects[0].error.code is Code.RESOURCE_EXHAUSTED
    assert rejects[0].error.retry_after_s is not None


def slow_so_far(bench: Bench) -> None:
    """Under an overload tokens came ten times later than predicted."""
    for name in ("p", "d"):
        known = bench.machine._state.registry.get(name)
        assert known is not None
        for _ in range(64):
            known.learn_tpot(0.2, 0.02, bench.now)
            known.learn_ttft(3.0, 0.3, bench.now)


def test_an_idle_node_takes_a_request_whatever_became_of_earlier_ones() -> None:
    bench = bench_of(RouterConfig(admission="reject"), P, D)
    slow_so_far(bench)
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    assert of(Dispatch, bench.arrive("probe", slo=slo))
    assert of(Reject, bench.arrive("second", slo=slo))


def test_what_came_of_an_overload_is_forgotten() -> None:
    bench = bench_of(RouterConfig(admission="reject"), P, D)
    slow_so_far(bench)
    bench.now += 61.0
    bench.report("p", load(Role.PREFILL, 3))
    bench.report("d", load(Role.DECODE, 3))
    for i in range(3):
        assert of(Dispatch, bench.arrive(f"r{i}", slo=Slo(ttft_s=0.5, tpot_s=0.05)))


def test_an_idle_node_takes_what_is_thought_to_take_too_long() -> None:
    bench = bench_of(RouterConfig(admission="reject"), P, D)
    assert of(Dispatch, bench.arrive("r", prompt=500, slo=Slo(ttft_s=0.4)))
