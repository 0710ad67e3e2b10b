"""Nodes that share a host: how they hold each other up, and that leaps know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baton.sim.faults import Cancel
from baton.sim.host import PROMPT, Beside, Host, between
from baton.sim.spec import ClusterSpec, NetworkSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

from .kit import SMALL, arrivals, by_number, faults, same

BESIDE = Beside(
    prompt_prompt=1.5,
    prompt_decode=((1, 1.4), (4, 1.2)),
    decode_prompt=((1, 1.3), (4, 1.1)),
    decode_decode=((1, 1.25),),
    cores=2,
)
NAMES = ("p0", "p1", "d0", "d1", "b0")
few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


def shared(
    prefill: int, decode: int, both: int = 0, beside: Beside = BESIDE, noise: float = 0.05
) -> ClusterSpec:
    profile = replace(SMALL, beside=beside, noise=noise)
    spec = ClusterSpec.pools(profile, prefill, decode, both)
    return replace(spec, nodes=tuple(replace(node, host="here") for node in spec.nodes))


def test_values_between_rows_are_on_the_line_and_beyond_them_the_last() -> None:
    points = ((2, 1.2), (4, 1.4), (8, 1.0))
    assert [between(points, rows) for rows in (1, 2, 3, 4, 6, 8, 9)] == pytest.approx(
        [1.2, 1.2, 1.3, 1.4, 1.2, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("own", "others", "pace"),
    [
        (PROMPT, [], 1.0),
        (3, [], 1.0),
        (PROMPT, [PROMPT], 1.5),
        (PROMPT, [1], 1.4),
        (PROMPT, [9], 1.2),
        (1, [PROMPT], 1.3),
        (4, [PROMPT], 1.1),
        (2, [7], 1.25),
        # Three threads, two cores: half of the others run at once, and each waits a third of the time.
        (PROMPT, [1, PROMPT], (1 + (0.4 + 0.5) / 2) * 1.5),
        (1, [PROMPT, 1, 1], (1 + (0.3 + 0.25 + 0.25) / 3) * 2.0),
    ],
)
def test_pace(own: int, others: Sequence[int], pace: float) -> None:
    assert BESIDE.pace(own, others) == pytest.approx(pace)


def test_one_core_is_shared_one_after_the_other() -> None:
    assert replace(BESIDE, cores=1).pace(PROMPT, [1]) == pytest.approx(2.0)
    wide = replace(BESIDE, cores=4, threads=2)
    assert wide.pace(PROMPT, [PROMPT]) == pytest.approx(1.5)
    assert wide.pace(PROMPT, [PROMPT] * 3) == pytest.approx((1 + 3 * 0.5 / 3) * 2)


def test_between_one_other_and_a_crowd_it_is_a_line() -> None:
    crowded = replace(BESIDE, crowd=(4, 3.0, 2.5))
    assert crowded.pace(PROMPT, [PROMPT]) == 1.5
    assert crowded.pace(PROMPT, [PROMPT, 1]) == pytest.approx((1.45 + 3.0) / 2)
    assert crowded.pace(1, [PROMPT, 1, 1]) == pytest.approx(2.5)
    assert crowded.pace(1, [PROMPT] * 4) == pytest.approx(2.5 + (2.5 - 1.3) / 2)


class Told:
    def __init__(self) -> None:
        self.times = 0

    def repace(self) -> None:
        self.times += 1


def test_a_host_tells_the_others_of_what_is_news() -> None:
    host, one, two = Host(), Told(), Told()
    host.runs(one, PROMPT)
    host.runs(two, 3)
    assert (host.beside(one), host.beside(two), one.times, two.times) == ([3], [PROMPT], 1, 0)
    host.runs(two, 3)
    host.runs(one, PROMPT)
    assert (one.times, two.times) == (1, 0)
    host.runs(two, 4)
    host.runs(two, None)
    host.runs(two, None)
    assert (host.beside(one), one.times, two.times) == ([], 3, 0)


def test_steps_take_longer_for_as_long_as_others_run() -> None:
    """Two prompts at once on two prefill nodes. The shorter takes 1.5 times as long as alone; so does the
    longer, but only until then."""
    spec = replace(shared(2, 1, noise=0.0), network=NetworkSpec(latency_s=0.0))
    short_s, long_s = (0.002 + tokens * 1e-4 + 1e-8 * tokens * tokens / 2 for tokens in (32, 64))
    results = World(spec, options=Options(checks=Checks(limit_s=60.0))).run(
        [Arrival(0.0, 64, 1), Arrival(0.0, 32, 1)]
    )
    longer, shorter = sorted(results.requests, key=lambda result: result.number)
    assert {longer.prefill_node, shorter.prefill_node} == {"p0", "p1"}
    assert shorter.ttft_s == pytest.approx(1.5 * short_s)
    assert longer.ttft_s == pytest.approx(1.5 * short_s + (long_s - short_s))


class Figures(NamedTuple):
    ttft_s: float
    tpot_s: float
    busy: float


def figures(spec: ClusterSpec) -> Figures:
    results = World(spec, 5, options=Options(checks=Checks(every=0))).run(arrivals(5, 60, rate=30.0))
    summary = results.summary()
    return Figures(summary.ttft_s.p50, summary.tpot_s.p50, sum(results.busy.values()))


def test_a_shared_host_is_slower_and_a_host_of_ones_own_is_not() -> None:
    alone = figures(ClusterSpec.pools(SMALL, 1, 1))
    own = figures(ClusterSpec.pools(replace(SMALL, beside=BESIDE), 1, 1))
    free = replace(BESIDE, prompt_prompt=1.0, prompt_decode=((1, 1.0),), decode_prompt=((1, 1.0),))
    assert alone == own == pytest.approx(figures(shared(1, 1, beside=free)))
    beside = figures(shared(1, 1))
    assert all(more > less for more, less in zip(beside, alone, strict=True))


@few
@given(seed=st.integers(0, 10**6))
@example(seed=58)  # an answer that breaks off in the middle of a leap
def test_leaps_change_nothing_on_a_shared_host(seed: int) -> None:
    plan = tuple(f for f in faults(seed, NAMES, seed % 5, 1.0) if not isinstance(f, Cancel))
    spec = replace(shared(2, 2, seed % 2), network=NetworkSpec(detect_s=1.0))
    runs = []
    for leaps in (True, False):
        options = Options(checks=Checks(every=0, limit_s=120.0), leaps=leaps, faults=plan)
        runs.append(World(spec, seed, options=options))
    leapt, stepped = (world.run(arrivals(seed, 40, rate=60.0)) for world in runs)
    for one, other in zip(by_number(leapt.requests), by_number(stepped.requests), strict=True):
        assert same(one, other), (one, other)
    assert leapt.busy == pytest.approx(stepped.busy)


def test_the_same_seed_gives_the_same_results_on_a_shared_host() -> None:
    spec = shared(2, 2, 1)
    first, second = (
        World(spec, 3, options=Options(checks=Checks(every=0))).run(arrivals(3, 60, rate=60.0)).requests
        for _ in range(2)
    )
    assert first == second
