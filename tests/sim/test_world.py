"""Whole clusters under load and faults: invariants after every event, replay, leaps that change nothing."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baton.core.load import Role
from baton.router.events import Effect, Event
from baton.sim.clients import ClientSpec
from baton.sim.failure import SimulationError
from baton.sim.faults import Apart, Cancel, Kill, TakeRole
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

from .kit import SMALL, arrivals, by_number, cluster, faults, same

NAMES = ("p0", "p1", "d0", "d1", "b0")
SOON = Checks(every=1, limit_s=120.0)
few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("pools", [(1, 1, 0), (2, 3, 0), (0, 0, 2), (1, 1, 1)])
def test_all_is_served_and_nothing_is_left(pools: tuple[int, int, int]) -> None:
    options = Options(checks=SOON)
    results = World(cluster(*pools), 7, options=options).run(arrivals(7, 40, rate=40.0))
    assert [result.number for result in by_number(results.requests)] == list(range(40))
    assert all(result.outcome == "stop" for result in results.requests)
    summary = results.summary()
    assert 0 < summary.ttft_s.p50 <= summary.ttft_s.most < 5.0
    assert 0.004 < summary.tpot_s.p50 < 0.05
    assert all(0.0 < share < 1.0 for share in results.busy.values())


def test_an_idle_pair_takes_as_long_as_its_parts() -> None:
    """One request: two hops, the prompt's steps, then decode's, each of which the profile says."""
    profile = replace(SMALL, noise=0.0)
    spec = ClusterSpec.pools(profile, prefill=1, decode=1)
    results = World(spec, options=Options(checks=SOON)).run([Arrival(0.0, 64, 9)])
    (result,) = results.requests
    assert result.ttft_s == pytest.approx(
        2 * spec.network.latency_s + 0.002 + 64e-4 + 1e-8 * 32 * 64, abs=1e-6
    )
    assert result.tpot_s is not None
    transfer_s = 0.0005 + 64 * 1000 / 1e7 + 4 * spec.network.latency_s
    assert result.tpot_s * 8 == pytest.approx(8 * 0.005 + 1e-6 * sum(range(65, 73)) + transfer_s, rel=0.03)


@few
@given(seed=st.integers(0, 10**6), fenced=st.booleans(), timeout=st.booleans())
def test_faults_break_no_invariant(seed: int, fenced: bool, timeout: bool) -> None:
    spec = cluster(2, 2, 1, jitter=0.5, loss=0.02, resend_s=0.05, detect_s=1.0, fenced=fenced)
    clients = ClientSpec(timeout_s=5.0 if timeout else None, resends=1)
    options = Options(clients, SOON, faults=faults(seed, NAMES, 8, 0.6))
    results = World(spec, seed, options=options).run(arrivals(seed, 30, rate=80.0))
    assert len(results.requests) == 30


@few
@given(seed=st.integers(0, 10**6))
@example(seed=58)  # an answer that breaks off in the middle of a leap
@example(seed=1460)  # a hand-off in the middle of a leap, of a prefix that the leap has just completed
def test_leaps_change_nothing(seed: int) -> None:
    plan = tuple(f for f in faults(seed, NAMES, seed % 5, 1.0) if not isinstance(f, Cancel))
    runs = []
    for leaps in (True, False):
        options = Options(checks=Checks(every=0, limit_s=120.0), leaps=leaps, faults=plan)
        runs.append(World(cluster(2, 2, seed % 2, detect_s=1.0), seed, options=options))
    leapt, stepped = (world.run(arrivals(seed, 40, rate=60.0)) for world in runs)
    for one, other in zip(by_number(leapt.requests), by_number(stepped.requests), strict=True):
        assert same(one, other), (one, other)
    assert leapt.busy == pytest.approx(stepped.busy)
    assert leapt.events < stepped.events


def test_a_run_leaves_no_cycles() -> None:
    """Long ones turn the collector off."""
    world = World(cluster(2, 2, 1), 5, options=Options(checks=Checks(every=0)))
    gc.collect()
    gc.disable()
    try:
        world.run(arrivals(5, 40, rate=60.0))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_same_seed_gives_the_same_effects() -> None:
    logs: list[list[str]] = []
    for _ in range(2):
        log: list[str] = []

        def watch(now: float, event: Event, effects: list[Effect], log: list[str] = log) -> None:
            log.append(f"{now} {event!r} {effects!r}")

        options = Options(faults=faults(3, NAMES, 6, 1.0), checks=Checks(every=0))
        World(cluster(2, 2, 1, jitter=0.5, loss=0.02), 3, options=options, watch=watch).run(
            arrivals(3, 40, 60.0)
        )
        logs.append(log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 200


def test_a_broken_invariant_names_its_seed_and_event_and_comes_again() -> None:
    messages = []
    for _ in range(2):
        world = World(cluster(), 11, options=Options(checks=SOON))

        def steal(world: World = world) -> None:
            world.hub.nodes["d0"].core.kv.allocate(1)

        world.clock.at(0.4, steal)
        with pytest.raises(
            SimulationError, match=r"seed 11, event \d+ at 0\.4.*an owner that nobody knows"
        ) as caught:
            world.run(arrivals(1, 20, rate=20.0))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_dead_decode_node_costs_a_retry_and_no_token() -> None:
    options = Options(checks=SOON, faults=(Kill(0.2, "d0"), Kill(0.3, "d1", restart_s=0.5)))
    results = World(cluster(1, 2), 5, options=options).run(arrivals(5, 20, rate=30.0))
    assert all(result.ok for result in results.requests)
    assert any(result.retries for result in results.requests)


@pytest.mark.parametrize("for_s", [0.5, 2.5])
def test_a_node_apart_for_a_while_comes_back(for_s: float) -> None:
    """Shorter than it takes to notice: all is late. Longer: its streams broke, and it is announced again."""
    options = Options(checks=SOON, faults=(Apart(0.2, ("d0",), for_s),))
    asked = list(arrivals(2, 30, rate=12.0)) + [Arrival(6.0 + 0.2 * i, 30, 10) for i in range(6)]
    results = World(cluster(1, 2, detect_s=1.0), 2, options=options).run(asked)
    assert all(result.ok for result in results.requests)
    late = [result for result in results.requests if result.arrived_s > 6.0]
    assert {result.decode_node for result in late} == {"d0", "d1"}


def test_roles_change_under_load() -> None:
    options = Options(checks=SOON, faults=(TakeRole(0.2, "d1", Role.PREFILL), TakeRole(0.9, "d1", Role.BOTH)))
    results = World(cluster(1, 2), 4, options=options).run(arrivals(4, 40, rate=30.0))
    assert all(result.ok and not result.retries for result in results.requests)
    assert [(name, role) for _, name, role in results.roles[3:]] == [("d1", "prefill"), ("d1", "both")]
