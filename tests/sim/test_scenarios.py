"""Readable transcripts of whole clusters: `scenarios/*.txt` are played again and compared, line by line.

Record anew with BATON_RECORD_SCENARIOS=1, and explain each changed line in the commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from baton.core.load import Role
from baton.core.request import Slo
from baton.router.machine_config import RouterConfig
from baton.sim.clients import ClientSpec
from baton.sim.faults import Kill, Slow, Stale, TakeRole
from baton.sim.transcript import Transcript
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Options, Results, World

from .kit import SMALL, cluster

FOLDER = Path(__file__).parent / "scenarios"
SCENARIOS: dict[str, Callable[[Transcript], Results]] = {}


def scenario(play: Callable[[Transcript], Results]) -> Callable[[Transcript], Results]:
    SCENARIOS[play.__name__] = play
    return play


def steady(count: int, every_s: float, prompt: int = 40, output: int = 8) -> list[Arrival]:
    return [Arrival(i * every_s, prompt, output) for i in range(count)]


@scenario
def burst(watch: Transcript) -> Results:
    """Ten at once on two pairs: they are spread, and the router holds back what nodes cannot begin."""
    return World(cluster(2, 2), 1, watch=watch).run(steady(10, 0.0005, prompt=120))


@scenario
def hot_prefix(watch: Transcript) -> Results:
    """Six prompts that begin alike: the first is computed, the others follow it while that pays."""
    asked = [Arrival(0.2 * i, 96, 6, prefix=(7,), prefix_block=80) for i in range(4)]
    asked += [
        Arrival(1.0, 96, 6, prefix=(7,), prefix_block=80),
        Arrival(1.001, 96, 6, prefix=(9,), prefix_block=80),
    ]
    return World(cluster(2, 1), 1, watch=watch).run(asked)


@scenario
def long_prompt_convoy(watch: Transcript) -> Results:
    """A prompt of 360 tokens, then six of 12 on the same node: none of them waits for all of it."""
    asked = [Arrival(0.0, 360, 4)] + [Arrival(0.004 + 0.001 * i, 12, 4) for i in range(6)]
    return World(cluster(1, 1), 1, watch=watch).run(asked)


@scenario
def slow_node(watch: Transcript) -> Results:
    """d0 takes eight times as long from 0.5 s on: its reports say so, and requests go to d1."""
    options = Options(faults=(Slow(0.5, "d0", 8.0),))
    return World(cluster(1, 2), 1, options=options, watch=watch).run(steady(14, 0.12, output=16))


@scenario
def recovered_node(watch: Transcript) -> Results:
    """d1 takes eight times as long from 0.5 to 3 s: ten seconds after its last token it is tried again, and
    found well."""
    options = Options(faults=(Slow(0.5, "d1", 8.0), Slow(3.0, "d1", 1.0)))
    return World(cluster(1, 2), 1, options=options, watch=watch).run(steady(30, 0.7, output=16))


@scenario
def dying_node(watch: Transcript) -> Results:
    """d0 dies while it decodes, p0 while it computes a prompt: what they had is done again."""
    options = Options(faults=(Kill(0.25, "d0", restart_s=0.3), Kill(0.404, "p0", restart_s=0.2)))
    return World(cluster(1, 2), 3, options=options, watch=watch).run(steady(6, 0.08, output=24))


@scenario
def stale_reports(watch: Transcript) -> Results:
    """What nodes say of themselves is half a second old: the router counts what it has sent itself."""
    options = Options(faults=(Stale(0.0, "d0", 0.5), Stale(0.0, "d1", 0.5), Stale(0.0, "p0", 0.5)))
    return World(cluster(1, 2), 1, options=options, watch=watch).run(steady(10, 0.02, output=20))


@scenario
def role_flip_under_load(watch: Transcript) -> Results:
    """d1 becomes a prefill node and back while requests run on it: none is lost, none repeated."""
    options = Options(faults=(TakeRole(0.2, "d1", Role.PREFILL), TakeRole(0.7, "d1", Role.DECODE)))
    return World(cluster(1, 2), 1, options=options, watch=watch).run(steady(12, 0.08, output=20))


@scenario
def rejected_and_retried(watch: Transcript) -> Results:
    """One small node and a router that queues three: some are turned away, come again when told to, and are
    served."""
    small = replace(SMALL, max_running=2)
    nodes = tuple(replace(node, profile=small) for node in cluster(1, 1).nodes)
    config = RouterConfig(max_queued=3, decode_slack=0, max_node_requests=2)
    options = Options(clients=ClientSpec(resends=8))
    world = World(replace(cluster(1, 1), nodes=nodes), 1, router=config, options=options, watch=watch)
    return world.run([replace(each, slo=Slo(2.0, 0.1)) for each in steady(9, 0.002, output=12)])


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_transcript(name: str) -> None:
    transcript = Transcript()
    results = SCENARIOS[name](transcript)
    written = f"# {' '.join((SCENARIOS[name].__doc__ or '').split())}\n{transcript.text()}"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("BATON_RECORD_SCENARIOS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(written)
    assert all(result.ok for result in results.requests), "each of them is served in the end"
    assert written == path.read_text(), f"{name} went another way: see the module's docstring"


def test_no_transcript_without_a_scenario() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SCENARIOS)
