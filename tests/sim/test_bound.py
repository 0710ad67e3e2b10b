"""The bound that no schedule exceeds: against all schedules of small cases, and for what it counts."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.request import Slo
from baton.sim.cost import StepWork
from baton.sim.experiments.bound import needs, on_time, served
from baton.sim.profiles import profile
from baton.sim.workload.arrival import Arrival

PROFILE = profile("llama-3.1-8b@h100")


def feasible(jobs: list[tuple[float, float]], ttft_s: float, speed: float) -> bool:
    """One machine, in order of arrival: with deadlines in that order nothing does better."""
    free_s = 0.0
    for at_s, work in jobs:
        free_s = max(free_s, at_s) + work / speed
        if free_s > at_s + ttft_s + 1e-9:
            return False
    return True


def most(jobs: list[tuple[float, float]], ttft_s: float, speed: float) -> int:
    for size in range(len(jobs), 0, -1):
        if any(
            feasible([jobs[i] for i in some], ttft_s, speed) for some in combinations(range(len(jobs)), size)
        ):
            return size
    return 0


TENTHS = st.integers(0, 40).map(lambda n: n / 10)
JOBS = st.lists(st.tuples(TENTHS, st.integers(1, 30).map(lambda n: n / 10)), max_size=8).map(
    lambda jobs: sorted(jobs, key=lambda job: job[0])
)


@given(JOBS, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 3.0]))
def test_no_larger_set_could_be_on_time(jobs, ttft_s, speed):
    kept = on_time(jobs, ttft_s, speed)
    assert feasible([job for job, keep in zip(jobs, kept, strict=True) if keep], ttft_s, speed)
    assert sum(kept) == most(jobs, ttft_s, speed)


def test_a_prefix_is_computed_once():
    slo = Slo(ttft_s=1.0, tpot_s=0.05)
    shared = [Arrival(float(i), 2048, 10, (0, 1, 2, 10 + i), 512) for i in range(3)]
    first, second, third = needs(shared, PROFILE, slo)
    assert second.prefill_s == pytest.approx(third.prefill_s)
    assert second.prefill_s < 0.4 * first.prefill_s
    same = [replace(arrival, prefix=(0, 1, 2, 3)) for arrival in shared]
    assert 0.0 < needs(same, PROFILE, slo)[1].prefill_s < 0.01 * first.prefill_s  # the last token always is


def test_a_tight_target_means_small_batches_and_dear_tokens():
    trace = [Arrival(float(i), 512, 100) for i in range(10)]
    measured = profile("smollm2-cpu")
    loose, tight = (needs(trace, measured, Slo(1.0, tpot_s))[0].decode_s for tpot_s in (0.2, 0.025))
    assert tight > 2 * loose


def test_answers_beside_prompts_cost_what_they_add_to_the_step():
    """On a GPU's roofline that is their arithmetic: prompts' hides the reading of weights and KV."""
    [need] = needs([Arrival(0.0, 512, 101)], PROFILE, Slo(1.0, 0.05))
    cost = PROFILE.cost
    alone_s = cost.step_s(StepWork(0, 0.0, 0, 256, 256 * 562)) / 256
    assert need.decode_s < 0.6 * 100 * alone_s
    assert need.decode_s >= 100 * 2.0 * cost.parameters / cost.flops


def test_who_is_served_depends_on_the_rate_and_the_nodes():
    trace = [Arrival(i / 10, 4096, 50) for i in range(200)]
    found = needs(trace, PROFILE, Slo(0.5, 0.05))
    shares = [sum(served(found, factor, 1, 0.5)) / 200 for factor in (10.0, 1.0, 0.1)]
    assert shares[0] == 1.0
    assert 1.0 > shares[1] > shares[2] > 0.0
    assert sum(served(found, 1.0, 4, 0.5)) > 200 * shares[1]
    assert sum(served(found, 1.0, 1, None)) == 200  # nothing is late without a target
    assert sum(served(found, 1.0, 1, 0.01)) == 0  # no node computes one in so short a time
