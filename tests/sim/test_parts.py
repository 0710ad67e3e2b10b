"""The simulator's own parts: links, clock, cost models, profiles, records."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim import scale
from baton.sim.clock import Clock
from baton.sim.cost import MeasuredCost, StepWork
from baton.sim.flows import Flows
from baton.sim.network import Network
from baton.sim.profiles import names, profile
from baton.sim.results import RequestResult, percentile, spread, summarise, warm
from baton.sim.sampling import END, run, token
from baton.sim.spec import NetworkSpec


def decode(rows: int, context: int) -> StepWork:
    return StepWork(0, 0.0, 0, rows, context)


def prompt(tokens: int, before: int = 0) -> StepWork:
    return StepWork(tokens, tokens * (before + tokens / 2), 1, 0, 0)


def test_equal_times_fire_in_order_and_cancelled_ones_do_not() -> None:
    clock, fired = Clock(), []
    clock.at(1.0, fired.append, "a")
    gone = clock.at(0.5, fired.append, "gone")
    clock.at(1.0, fired.append, "b")
    clock.cancel(gone)
    assert clock.next() == 1.0
    while clock.step():
        pass
    assert fired == ["a", "b"]
    assert clock.fired == 2


def test_transfers_share_a_link() -> None:
    """Two from one node: half the rate each, until the shorter is done."""
    clock, ended = Clock(), []
    flows = Flows(clock)
    flows.rates = {"a": 100.0, "b": 1000.0, "c": 1000.0}
    flows.start("a", "b", 100.0, lambda whole: ended.append(("long", clock.now, whole)))
    flows.start("a", "c", 25.0, lambda whole: ended.append(("short", clock.now, whole)))
    while clock.step():
        pass
    assert ended == [("short", 0.5, True), ("long", pytest.approx(1.25), True)]


def test_a_stopped_transfer_leaves_its_share_to_others() -> None:
    clock, ended = Clock(), []
    flows = Flows(clock)
    flows.rates = {"a": 100.0, "b": 100.0}
    first = flows.start("a", "b", 100.0, lambda whole: ended.append((clock.now, whole)))
    flows.start("a", "b", 100.0, lambda whole: ended.append((clock.now, whole)))
    clock.at(1.0, flows.stop, first)
    while clock.step():
        pass
    assert ended == [(1.0, False), (pytest.approx(1.5), True)]
    assert len(flows) == 0


@pytest.mark.parametrize("spec", [NetworkSpec(), NetworkSpec(jitter=3.0, loss=0.3, resend_s=0.01)])
def test_a_stream_keeps_its_order_and_loses_nothing(spec: NetworkSpec) -> None:
    from random import Random

    clock, got = Clock(), []
    network = Network(clock, spec, Random(1))
    for i in range(200):
        clock.at(i * 1e-4, network.send, "a", "b", got.append, i)
    clock.at(0.005, network.part, ["a"], ["b"])
    clock.at(0.010, network.join)
    while clock.step():
        pass
    assert sorted(got) == list(range(200))
    assert got == list(range(200))


def test_measured_steps_lie_between_what_was_measured() -> None:
    cost = MeasuredCost((0.01, 0.001, 1e-6), ((1, 0.02), (4, 0.03), (16, 0.09)), 1e-5)
    assert cost.step_s(decode(1, 0)) == 0.02
    assert cost.step_s(decode(16, 100)) == pytest.approx(0.09 + 1e-3)
    assert cost.step_s(decode(10, 0)) == pytest.approx(0.06)
    assert cost.step_s(decode(28, 0)) == pytest.approx(0.15), "on beyond the last"
    assert cost.step_s(prompt(100)) == pytest.approx(0.01 + 0.1 + 0.005)
    mixed = StepWork(100, 5000.0, 1, 4, 0)
    assert cost.step_s(prompt(100)) < cost.step_s(mixed) < cost.step_s(prompt(100)) + 0.03


@pytest.mark.parametrize("name", ["smollm2-cpu", "llama-3-8b@h100", "llama-3-70b@a100x8"])
@pytest.mark.parametrize(("rows", "context"), [(1, 0), (7, 900), (256, 400_000), (600, 600)])
def test_lines_say_what_decode_steps_take(name: str, rows: int, context: int) -> None:
    cost = profile(name).cost
    line_s = max(fixed_s + each_s * context for fixed_s, each_s in cost.decode_lines(rows))
    assert line_s == pytest.approx(cost.step_s(decode(rows, context)))


@pytest.mark.parametrize("name", sorted(names()))
def test_shipped_profiles_are_plausible(name: str) -> None:
    one = profile(name)
    step_s = one.cost.step_s
    assert one.name.startswith(name)
    assert one.num_blocks * one.block_size > one.max_model_len
    assert step_s(decode(1, 100)) < step_s(decode(64, 64 * 1000)) < 64 * step_s(decode(1, 1000))
    assert step_s(prompt(256)) < step_s(prompt(512)) < step_s(prompt(512, before=4096))


def test_roofline_follows_the_published_peaks() -> None:
    """Decode is bound by bandwidth, prefill by arithmetic."""
    a100, h100, h200 = (profile(f"llama-3-8b@{device}").cost for device in ("a100", "h100", "h200"))
    one, many = decode(1, 1000), prompt(2048)
    assert a100.step_s(one) / h100.step_s(one) == pytest.approx(3.35 / 2.039, rel=0.1)
    assert h100.step_s(one) / h200.step_s(one) == pytest.approx(4.8 / 3.35, rel=0.1)
    assert a100.step_s(many) / h100.step_s(many) == pytest.approx(989.4 / 312, rel=0.1)
    assert h100.step_s(many) == h200.step_s(many)
    four, eight = profile("llama-3-70b@h100x4").cost, profile("llama-3-70b@h100x8").cost
    assert 1.2 < four.step_s(many) / eight.step_s(many) < 2.0, "all-reduces do not shrink"


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="hold too little"):
        profile("llama-3-70b@h100x1")
    with pytest.raises(InvalidArgument, match="no profile 'x@y'"):
        profile("x@y")


def test_runs_of_tokens_are_what_single_ones_are() -> None:
    for start, count, length in ((0, 5, 5), (0, 4, 9), (4090, 20, 5000), (8000, 200, 8200), (1, 9000, 9001)):
        assert run(start, count, length) == tuple(token(start + i, length) for i in range(count))
    assert run(0, 3, 3)[-1] == END


def result(
    ttft_s: float | None, tokens: int = 11, tpot_s: float = 0.1, outcome: str = "stop"
) -> RequestResult:
    last_s = None if ttft_s is None else 1.0 + ttft_s + tpot_s * (tokens - 1)
    first_s = None if ttft_s is None else 1.0 + ttft_s
    return RequestResult(0, 1.0, 8, outcome, tokens, first_s, last_s, slo=Slo(0.5, 0.2))


def test_figures_of_requests() -> None:
    assert result(0.4).ttft_s == pytest.approx(0.4)
    assert result(0.4).tpot_s == pytest.approx(0.1)
    assert result(0.4, tokens=1).tpot_s is None, "one token has no time between tokens"
    assert result(0.4).meets()
    assert result(0.4, tokens=1).meets()
    assert not result(0.6).meets()
    assert not result(0.4, tpot_s=0.3).meets()
    assert not result(0.4, outcome="cancelled").meets()
    assert not result(None, outcome="RESOURCE_EXHAUSTED").meets()
    assert result(0.6).meets(Slo())


def test_percentiles_and_goodput() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0], 0.99) == 1.0
    assert math.isnan(spread([]).p50)
    assert spread([3.0, 1.0]).mean == 2.0
    results = [result(0.4), result(0.4), result(0.9), result(None, 0, outcome="UNAVAILABLE")]
    summary = summarise(results, span_s=2.0)
    assert (summary.requests, summary.completed, summary.rejected) == (4, 3, 1)
    assert summary.attained == 0.5
    assert summary.goodput_rps == 1.0
    assert summary.ttft_s.count == 3
    assert warm(results, 1.5) == []


def test_goodput_exceeds_neither_the_offered_rate_nor_what_was_served() -> None:
    steady = [
        replace(result(0.4), arrived_s=float(i), first_token_s=i + 0.1, last_token_s=i + 0.2)
        for i in range(5)
    ]
    steady = [replace(each, ended_s=each.arrived_s + 0.2) for each in steady]
    assert summarise(steady).goodput_rps == pytest.approx(1.0)
    burst = [
        replace(each, arrived_s=0.001 * i, first_token_s=0.1 + 0.001 * i, ended_s=2.0)
        for i, each in enumerate(steady)
    ]
    assert summarise(burst, Slo()).goodput_rps == pytest.approx(5 / 2.0)


def test_the_scale_world_runs_small() -> None:
    results = scale.world(8, seed=1).run(scale.arrivals(8, 60, seed=1))
    assert results.summary().completed == 60
    assert len({result.decode_node for result in results.requests}) > 1
