"""Nodes of one host in profiles: measured beside each other, written, read, and put where they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.bench.load.results import TargetFacts
from baton.bench.load.target import Options
from baton.bench.load.targets import parse_target
from baton.bench.load.twin import cluster_of, twins
from baton.bench.profile import fit
from baton.bench.profile.ask import Answer, Shape
from baton.bench.profile.beside import Nodes
from baton.bench.profile.measure import Profiler
from baton.bench.profile.samples import (
    Crowd,
    DecodeBeside,
    DecodeSample,
    PrefillSample,
    PromptBeside,
    Samples,
)
from baton.bench.profile.write import NodeFacts, entry, write
from baton.core.load import Role
from baton.router.machine_config import RouterConfig
from baton.runtime.client.aio import AsyncClient
from baton.sim.host import PROMPT, Beside
from baton.sim.profiles import profile
from tests.bench.test_profile import FACTS, live
from tests.fakes import StubConfig, StubNode, router_with

HOSTED = NodeFacts(FACTS.name, 1024, 512, FACTS.limits, "a test", cores=4, threads=2)
CONTEXT_S = 1e-6


def measured(prompt: float, prompts: float, decode: float, rows: float, share: float = 1.0) -> Samples:
    """Of a node whose steps are slowed by these factors."""
    found = Samples([PrefillSample(64, 1, 0.1, 0.11)])
    found.decode += [DecodeSample(1, tokens, 0.01 + CONTEXT_S * tokens) for tokens in (20.0, 2000.0)]
    for each in (2, 5):
        alone = DecodeSample(each, 100.0 * each, 0.01 + CONTEXT_S * 100.0 * each)
        later_s = 0.01 + CONTEXT_S * 300.0 * each
        found.prompt_beside.append(PromptBeside(each, 0.1, 0.1 * prompts))
        for beside_prompts, factor in ((True, decode), (False, rows)):
            mean = 1.0 + share * (factor - 1.0)
            beside = DecodeSample(each, 300.0 * each, later_s * mean)
            found.decode_beside.append(DecodeBeside(beside_prompts, alone, beside, share))
    found.prompt_beside.append(PromptBeside(0, 0.1, 0.1 * prompt))
    return found


factors = st.floats(1.0, 4.0)


@given(factors, factors, factors, factors, st.floats(0.2, 1.0))
def test_factors_come_back(prompt: float, prompts: float, decode: float, rows: float, share: float) -> None:
    """Over more context than the steps alone, and beside something for a part of the time."""
    found = fit.beside(measured(prompt, prompts, decode, rows, share), CONTEXT_S)
    assert found == {
        "prompt": {"prompt": pytest.approx(prompt), "decode": pytest.approx({2: prompts, 5: prompts})},
        "decode": {
            "prompt": pytest.approx({2: decode, 5: decode}),
            "decode": pytest.approx({2: rows, 5: rows}),
        },
    }


def test_nothing_is_faster_beside_others_and_one_wild_measurement_of_three_changes_nothing() -> None:
    samples = measured(0.5, 0.5, 0.5, 0.5)
    assert fit.beside(samples, CONTEXT_S)["prompt"] == {"prompt": 1.0, "decode": {2: 1.0, 5: 1.0}}
    samples.prompt_beside = [PromptBeside(1, 0.1, beside_s) for beside_s in (0.12, 9.0, 0.12)]
    assert fit.beside(samples, CONTEXT_S)["prompt"] == {"decode": {1: pytest.approx(1.2)}}


def test_a_file_says_what_nodes_of_one_host_do(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    write(path, "mine", entry(measured(1.5, 1.4, 1.3, 1.2), HOSTED))
    assert profile(str(path)).beside == Beside(
        prompt_prompt=1.5,
        prompt_decode=((2, 1.4), (5, 1.4)),
        decode_prompt=((2, 1.3), (5, 1.3)),
        decode_decode=((2, 1.2), (5, 1.2)),
        cores=4,
        threads=2,
    )
    write(path, "mine", entry(measured(1.5, 1.4, 1.3, 1.2), FACTS))
    assert profile(str(path)).beside is None


def test_a_file_says_what_a_crowd_does(tmp_path: Path) -> None:
    path, samples = tmp_path / "p.yaml", measured(1.5, 1.4, 1.3, 1.2)
    alone = DecodeSample(1, 100.0, 0.0101)
    decode = DecodeBeside(True, alone, DecodeSample(1, 200.0, 2.5 * 0.0102), 1.0)
    samples.crowds = [Crowd(4, PromptBeside(2, 0.1, 0.3), decode)]
    write(path, "mine", entry(samples, HOSTED))
    found = profile(str(path)).beside
    assert found is not None
    assert found.crowd == (4, pytest.approx(3.0), pytest.approx(2.5, rel=1e-3))


def test_what_one_pair_cannot_tell_is_as_what_it_tells(tmp_path: Path) -> None:
    samples = measured(1.5, 1.4, 1.3, 1.2)
    samples.prompt_beside = [sample for sample in samples.prompt_beside if sample.rows]
    samples.decode_beside = [sample for sample in samples.decode_beside if sample.prompts]
    path = tmp_path / "p.yaml"
    write(path, "mine", entry(samples, HOSTED))
    found = profile(str(path)).beside
    assert found is not None
    assert found.factor(PROMPT, PROMPT) == found.factor(PROMPT, 2) == 1.4
    assert found.factor(3, 3) == found.factor(3, PROMPT) == 1.3


def test_tokens_are_counted_in_a_window() -> None:
    answer = Answer(0.0, [(1.0, 1), (2.0, 3), (3.0, 4)])
    assert [answer.made(*window) for window in ((0.0, 9.0), (1.0, 2.0), (1.5, 2.5), (3.0, 9.0))] == [
        4,
        2,
        2,
        0,
    ]


async def test_each_kind_is_measured_beside_each_on_the_nodes_it_needs() -> None:
    prefill, decode = ("p0", "p1"), ("d0", "d1")
    config = StubConfig(step_s=0.005, prefill_s=0.02, max_model_len=2000)
    stubs = [StubNode(name, replace(config, role=Role.PREFILL)) for name in prefill]
    stubs += [StubNode(name, replace(config, role=Role.DECODE)) for name in decode]
    gates: list[Sequence[str]] = []
    async with router_with(*stubs) as cluster, AsyncClient(cluster.app.address) as client:

        def gate(names: Sequence[str]) -> None:
            gates.append(tuple(names))

        told: list[tuple[str, float]] = []
        profiler = Profiler(client, Shape(331, 1400, 2048, 4), lambda what, share: told.append((what, share)))
        samples = await profiler.measure(1, Nodes(prefill, decode), gate)
        await cluster.all_idle()
    assert gates[0] == ("p0", "d0")
    assert [names for names in gates if "p1" in names] == [("p0", "p1", "d0"), ("p0", "p1", "d0", "d1")]
    assert [names for names in gates if "d1" in names] == [*[("p0", "d1")] * 3, ("p0", "p1", "d0", "d1")]
    assert gates[-1] == ("p0", "d0")
    assert told[-1][1] == 1.0
    assert sorted(sample.rows for sample in samples.prompt_beside if sample.rows) == [1, 2, 4]
    assert sorted((s.prompts, s.alone.rows) for s in samples.decode_beside if s.prompts) == [
        (True, 1),
        (True, 2),
        (True, 4),
    ]
    assert all(0.004 < sample.alone.step_s < 0.05 for sample in samples.decode_beside)
    (crowd,) = samples.crowds
    assert crowd.nodes == 4
    assert fit.crowd(samples, 0.0)["decode"] < 3.0
    found = fit.beside(samples, 0.0)
    assert all(1.0 <= value < 3.0 for value in found["prompt"]["decode"].values())  # type: ignore[union-attr]


# ---- the twin --------------------------------------------------------------------------------------------


def test_nodes_are_on_the_target_s_hosts() -> None:
    kind = profile("smollm2-cpu-int8")
    hosts = [{"prefill": 1, "decode": 2}, {"decode": 1}]
    target = TargetFacts("a", "grpc://a", "m", {"prefill": 1, "decode": 3}, hosts)
    placed = [(node.node_id, node.host) for node in cluster_of(target, kind, 0.0).nodes]
    assert placed == [("p0", "host0"), ("d0", "host0"), ("d1", "host0"), ("d2", "host1")]
    unknown = cluster_of(replace(target, hosts=[]), kind, 0.0)
    assert {node.host for node in unknown.nodes} == {""}


def test_runs_are_simulated_with_the_target_s_own_settings() -> None:
    made, asked = live(), []
    made.targets = [replace(made.targets[0], router={"order": "fcfs"})]

    def settings(router: dict[str, object]) -> RouterConfig:
        asked.append(router)
        return RouterConfig(max_queued=0)

    shed = twins(made, profile("smollm2-cpu-int8"), 0.0, settings)
    assert asked == [{"order": "fcfs"}]
    assert shed != twins(made, profile("smollm2-cpu-int8"), 0.0)


async def test_a_target_tells_its_hosts_and_settings() -> None:
    config = json.dumps({"router": {"order": "fcfs"}})
    async with router_with(StubNode("a"), StubNode("b"), config_json=config) as cluster:
        target = parse_target(f"grpc://{cluster.app.address}", Options())
        facts = await target.open()
        await target.close()
    assert (facts.nodes, facts.hosts, facts.router) == ({"both": 2}, [{"both": 2}], {"order": "fcfs"})
