"""A node that was slow gets its share of the work again; one that stays slow is tried now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from baton.core.request import Slo
from baton.sim.faults import Fault, Slow
from baton.sim.results import RequestResult, attainment
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

from .kit import SMALL

TIGHT = Slo(0.3, 0.02)  # a node that is five times as slow keeps neither
SECONDS, RATE = 120, 5.0
ROOMY = replace(SMALL, num_blocks=800, max_running=16, max_batch_tokens=256, chunk_tokens=128)


def played(
    faults: tuple[Fault, ...], slos: Sequence[Slo] = (TIGHT,), noise: float = 0.05
) -> list[RequestResult]:
    """Two prefill nodes and two decode nodes that have time to spare."""
    dice, at_s, load = Random("slow nodes"), 0.0, []
    while at_s < SECONDS:
        at_s += dice.expovariate(RATE)
        slo = slos[len(load) % len(slos)]
        load.append(Arrival(at_s, dice.randint(400, 900), dice.randint(10, 40), slo=slo))
    profile = replace(ROOMY, noise=noise, max_model_len=1000)
    cluster = replace(ClusterSpec.pools(profile, prefill=2, decode=2), report_s=0.1)
    options = Options(faults=faults, checks=Checks(every=0))
    return World(cluster, 1, options=options).run(load).requests


def between(results: Sequence[RequestResult], since_s: float, until_s: float) -> list[RequestResult]:
    return [result for result in results if since_s <= result.arrived_s < until_s]


def share(results: Sequence[RequestResult], name: str) -> float:
    return sum(name in (result.prefill_node, result.decode_node) for result in results) / len(results)


@pytest.mark.parametrize("name", ["p1", "d1"])
def test_slow_for_a_while_it_has_its_share_back_within_the_time_it_was_slow(name: str) -> None:
    """Regression: a decode node that had been slow for 20 s got no work for the rest of the run. (Whoever
    would be late at a slow node lets twice the time pass.)"""
    results = played((Slow(10.0, name, 5.0), Slow(30.0, name, 1.0)))
    assert share(between(results, 15.0, 30.0), name) < 0.25, "it was found to be slow"
    assert share(between(results, 70.0, 90.0), name) > 0.35
    assert share(between(results, 90.0, 120.0), name) > 0.35
    assert attainment(between(results, 30.0, 120.0)) > 0.98


def test_one_that_stays_slow_costs_a_request_now_and_then() -> None:
    results = played((Slow(10.0, "d1", 5.0),))
    assert 0.0 < share(between(results, 15.0, 120.0), "d1") < 0.02
    assert attainment(between(results, 15.0, 120.0)) > 0.97


def test_those_try_it_that_can_wait() -> None:
    results = played((Slow(10.0, "d1", 5.0),), slos=(TIGHT, Slo()))
    tried = [r for r in between(results, 15.0, 120.0) if r.decode_node == "d1"]
    assert len(tried) >= 10
    assert sum(result.slo == TIGHT for result in tried) <= 2
    assert attainment(between(results, 15.0, 120.0)) > 0.99


def test_noise_alone_starves_nobody() -> None:
    results = played((), noise=0.3)
    for name in ("p0", "p1", "d0", "d1"):
        for since_s in range(0, SECONDS, 20):
            assert 0.2 < share(between(results, since_s, since_s + 20), name) < 0.8, (name, since_s)
