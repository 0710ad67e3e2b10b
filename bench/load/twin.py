"""Does the simulator tell what a live deployment does? The same requests at the same times, in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from baton.bench.load.results import Results, Run, TargetFacts, Twin
from baton.bench.load.workload import Workload
from baton.core.errors import FailedPrecondition
from baton.core.request import Slo
from baton.router.machine_config import RouterConfig
from baton.sim.clients import ClientSpec
from baton.sim.results import RequestResult, percentile
from baton.sim.spec import ClusterSpec, NetworkSpec, Profile
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, World

SHARES = (("P50", 0.5), ("P90", 0.9))
ROLES = ("prefill", "decode", "both")

Value = Callable[[RequestResult], float | None]
Settings = Callable[[dict[str, Any]], RouterConfig]


def twins(
    results: Results, profile: Profile, client_s: float, settings: Settings = lambda router: RouterConfig()
) -> list[Twin]:
    """Of every run of a Baton deployment that counts. settings: makes what the router's machine is told of
    the settings that the target tells. FailedPrecondition: there is no such run."""
    facts = {target.name: target for target in results.targets if target.nodes}
    runs = [run for run in results.runs if run.good and run.target in facts]
    if not runs:
        raise FailedPrecondition("no run of a Baton deployment counts: there is nothing to simulate")
    found = []
    for run in runs:
        target = facts[run.target]
        cluster = cluster_of(target, profile, client_s)
        found += _beside(run, simulated(results, run, cluster, settings(target.router)), profile.name)
    return found


def cluster_of(target: TargetFacts, profile: Profile, client_s: float) -> ClusterSpec:
    """With the target's nodes, on as many hosts as it has them on. Its router has come to know them."""
    prefill, decode, both = (target.nodes.get(role, 0) for role in ROLES)
    cluster = ClusterSpec.pools(profile, prefill, decode, both).with_network(NetworkSpec(client_s=client_s))
    places: dict[str, list[str]] = {role: [] for role in ROLES}
    for number, roles in enumerate(target.hosts):
        for role, count in roles.items():
            places[role] += [f"host{number}"] * count
    nodes = [
        replace(node, host=places[node.role.value].pop(0) if places[node.role.value] else "")
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=tuple(nodes), calibrated=True)


def simulated(
    results: Results, run: Run, cluster: ClusterSpec, router: RouterConfig | None
) -> list[RequestResult]:
    """Those whose time lies in the run's window; times count from the run's beginning."""
    options = Options(clients=ClientSpec(most_tokens=None), checks=Checks(every=0))
    world = World(cluster, seed=run.seed, router=router, options=options)
    ended = world.run(arrivals_of(results, run)).requests
    start_s = min((r.arrived_s for r in ended), default=0.0) - min(
        (r.intended_s for r in run.records), default=0.0
    )
    return [r for r in ended if run.from_s <= r.arrived_s - start_s < run.until_s]


def arrivals_of(results: Results, run: Run) -> list[Arrival]:
    """As they were sent."""
    asked = results.experiment
    workload = Workload(
        asked.prompt_tokens,
        asked.output_tokens,
        asked.cv,
        Path(asked.trace) if asked.trace else None,
        asked.prefixes,
        asked.prefix_tokens,
    )
    slo = Slo(asked.ttft_s, asked.tpot_s)
    made = workload.make(None if run.own_times else run.rate, asked.duration_s, run.seed)
    return [replace(arrival, slo=slo) for arrival in made]


def _beside(run: Run, predicted: list[RequestResult], profile: str) -> list[Twin]:
    measured: dict[str, list[float]] = {
        "TTFT": [v for record in run.counted if (v := record.ttft_s) is not None],
        "TPOT": [v for record in run.counted if (v := record.tpot_s) is not None],
    }
    simulated: dict[str, list[float]] = {
        "TTFT": [v for result in predicted if (v := result.ttft_s) is not None],
        "TPOT": [v for result in predicted if (v := result.tpot_s) is not None],
    }
    found = []
    for name in measured:
        for label, share in SHARES:
            was, said = (_at(values[name], share) for values in (measured, simulated))
            error = None if was is None or said is None or not was else said / was - 1
            found.append(Twin(run.target, run.rate, run.round, profile, f"{name} {label}", was, said, error))
    return found


def _at(values: list[float], share: float) -> float | None:
    return percentile(sorted(values), share) if values else None
