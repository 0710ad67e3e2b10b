"""The planner in a whole cluster: roles follow the load, and no request notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from baton.core.request import Slo
from baton.router.events import Effect, Event, SetRole
from baton.router.machine_config import RouterConfig
from baton.router.planner import PlannerConfig
from baton.sim.spec import ClusterSpec
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Checks, Options, Results, World

from .kit import SMALL

PROFILE = replace(
    SMALL, nic_bytes_s=1e8, num_blocks=400, max_running=16, max_batch_tokens=256, chunk_tokens=256
)
CONFIG = RouterConfig(planner=PlannerConfig(every_s=1.0, patience=3, pause_s=5.0, tau_s=5.0))
LONG, TALKATIVE = (300, 4), (20, 150)  # tokens of prompt and answer
SLO = Slo(0.5, 0.05)


def load(
    seed: int, until_s: float, rate: float, shape: tuple[int, int], from_s: float = 0.0
) -> Iterator[Arrival]:
    dice = Random(seed)
    at_s = from_s
    while (at_s := at_s + dice.expovariate(rate)) < until_s:
        prompt, output = shape
        yield Arrival(at_s, dice.randint(prompt // 2, prompt), dice.randint(output // 2, output), slo=SLO)


def run(*loads: Iterator[Arrival]) -> tuple[Results, list[tuple[float, str, str]]]:
    """On one prefill and five decode nodes; and when which node was given which role."""
    changed: list[tuple[float, str, str]] = []

    def watch(now: float, event: Event, effects: list[Effect]) -> None:
        changed.extend((now, e.node_id, e.role.value) for e in effects if isinstance(e, SetRole))

    options = Options(checks=Checks(every=200))
    world = World(ClusterSpec.pools(PROFILE, prefill=1, decode=5), 3, CONFIG, None, options, watch)
    return world.run(arrival for each in loads for arrival in each), changed


def test_nodes_change_to_prefill_when_prompts_are_long_and_back_when_answers_are() -> None:
    results, changed = run(load(1, 20.0, 60.0, LONG), load(2, 50.0, 12.0, TALKATIVE, from_s=20.0))
    assert all(result.outcome == "stop" for result in results.requests), "a request was lost"
    early = [role for when, _, role in changed if when < 21.0]
    late = [role for when, _, role in changed if when >= 21.0]
    assert early
    assert set(early) <= {"prefill", "both"}
    assert len(changed) <= 8
    assert all(role != "prefill" for role in late)


def test_under_a_steady_load_roles_come_to_rest() -> None:
    results, changed = run(load(4, 40.0, 40.0, LONG))
    assert all(result.outcome == "stop" for result in results.requests)
    assert len(changed) <= 3
    assert all(when < 25.0 for when, _, _ in changed), changed
    names = [name for _, name, _ in changed]
    assert len(names) == len(set(names)), "a node was sent to and fro"


def test_more_keep_their_targets_with_it_than_without() -> None:
    planned, _ = run(load(5, 20.0, 60.0, LONG))
    fixed = World(
        ClusterSpec.pools(PROFILE, prefill=1, decode=5), 3, options=Options(checks=Checks(every=200))
    ).run(load(5, 20.0, 60.0, LONG))
    assert planned.summary().attained > fixed.summary().attained + 0.1
