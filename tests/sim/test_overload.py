"""Early rejection in a whole cluster: under overload who is let in is served on time, and it ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from baton.core.request import Slo
from baton.router.machine_config import RouterConfig
from baton.sim.cost import MeasuredCost
from baton.sim.results import RequestResult
from baton.sim.spec import ClusterSpec, Profile
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

# A small model on a processor: ten times slower than what the router takes nodes for at first.
COST = MeasuredCost(prefill=(0.02, 2e-3, 1e-7), decode=((1, 0.03), (4, 0.07), (16, 0.20)), context_s=1e-5)
SLOW = Profile(
    name="slow",
    cost=COST,
    kv_bytes_per_token=1000,
    num_blocks=4000,
    nic_bytes_s=1e8,
    block_size=16,
    max_model_len=2048,
    max_batch_tokens=512,
    chunk_tokens=256,
    max_running=16,
    noise=0.1,
)
SLO = Slo(1.5, 0.15)
CAPACITY = 2.0  # requests per second that two such nodes serve, about
BURST_S = 20.0


def poisson(seed: int, rate: float, from_s: float, until_s: float) -> Iterator[Arrival]:
    dice = Random(f"overload/{seed}")
    at_s = from_s
    while (at_s := at_s + dice.expovariate(rate)) < until_s:
        yield Arrival(at_s, dice.randint(50, 300), 40, slo=SLO)


def run(seed: int, *loads: Iterator[Arrival]) -> list[RequestResult]:
    config = RouterConfig(admission="reject")
    options = Options(checks=Checks(every=500))
    world = World(ClusterSpec.pools(SLOW, both=2), seed, config, None, options)
    return world.run(arrival for each in loads for arrival in each).requests


@pytest.mark.parametrize("seed", range(3))
def test_who_is_let_in_under_overload_is_served_on_time(seed: int) -> None:
    results = run(seed, poisson(seed, 4 * CAPACITY, 0.0, BURST_S))
    served = [result for result in results if result.ok]
    assert {result.outcome for result in results} == {"stop", "RESOURCE_EXHAUSTED"}
    assert len(served) >= 0.5 * CAPACITY * BURST_S
    assert sum(result.meets() for result in served) >= 0.8 * len(served)


@pytest.mark.parametrize("seed", range(3))
def test_after_an_overload_light_load_is_let_in_whole(seed: int) -> None:
    """From some seconds after the burst on."""
    after = poisson(seed + 100, 0.1 * CAPACITY, BURST_S + 15.0, BURST_S + 115.0)
    results = run(seed, poisson(seed, 4 * CAPACITY, 0.0, BURST_S), after)
    light = [result for result in results if result.arrived_s > BURST_S + 15.0]
    assert len(light) > 8
    assert all(result.ok for result in light)
    assert sum(result.meets() for result in light) >= 0.9 * len(light)


QUICK = replace(
    SLOW,
    name="quick",
    cost=MeasuredCost(prefill=(0.01, 1e-4, 0.0), decode=((1, 0.005), (16, 0.01)), context_s=0.0),
    max_batch_tokens=1024,
    chunk_tokens=1024,
    noise=0.0,
)


@pytest.mark.parametrize("seed", range(3))
def test_a_single_node_turns_away_whom_it_would_serve_too_late_and_hardly_any_other(seed: int) -> None:
    """Its prompts take less time than passes between two of its reports."""
    prompt_s, slo = 0.01 + 500 * 1e-4, Slo(0.1, 1.0)
    arrivals = [Arrival(one.at_s, 500, 20, slo=slo) for one in poisson(seed, 3.0, 0.0, 300.0)]
    config = RouterConfig(admission="reject")
    world = World(
        ClusterSpec.pools(QUICK, prefill=1, decode=1), seed, config, None, Options(checks=Checks(every=500))
    )
    results = world.run(iter(arrivals)).requests
    free_s, in_time = 0.0, 0
    for arrival in arrivals:  # all are alike: nothing is better than to take who can be on time
        if max(free_s, arrival.at_s) + prompt_s <= arrival.at_s + slo.ttft_s:
            free_s = max(free_s, arrival.at_s) + prompt_s
            in_time += 1
    assert 0.7 * len(arrivals) < in_time < 0.95 * len(arrivals)
    assert sum(result.meets() for result in results) >= 0.97 * in_time
