"""The largest world that is run on purpose: a thousand nodes, a million requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from baton.router.machine_config import RouterConfig
from baton.sim.profiles import profile
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

PROFILE = "llama-3-8b@h100"
NODE_RATE = 5.0
"""Requests per second and node: about a third of what prefill nodes can do."""
CHECK_EVERY = 1_000_000
"""Events between two checks of all invariants; those of requests and hand-offs are watched all the time."""


def cluster(nodes: int) -> ClusterSpec:
    """A quarter of them prefills. Reports are rare, and short: a router reads all of them."""
    spec = ClusterSpec.pools(profile(PROFILE), prefill=nodes // 4, decode=nodes - nodes // 4)
    return replace(spec, report_s=1.0, report_samples=8, calibrated=True)


def arrivals(nodes: int, requests: int, seed: int) -> Iterator[Arrival]:
    """Poisson; prompts of 128 to 384 tokens, answers of 32 to 96, all alike."""
    dice = Random(f"{seed}/arrivals")
    at_s = 0.0
    for _ in range(requests):
        at_s += dice.expovariate(NODE_RATE * nodes)
        yield Arrival(at_s, dice.randint(128, 384), dice.randint(32, 96))


def world(nodes: int, seed: int = 0) -> World:
    options = Options(checks=Checks(every=CHECK_EVERY))
    return World(cluster(nodes), seed, RouterConfig(), options=options)
