"""Profiles of live nodes, and how the simulator fares beside what it is to predict."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.bench.load.results import Results, Twin
from baton.bench.load.spread import spread
from baton.bench.load.summary import summarise
from baton.bench.load.tables import twin_cells
from baton.bench.load.twin import arrivals_of, cluster_of, simulated, twins
from baton.bench.profile import fit
from baton.bench.profile.ask import Shape
from baton.bench.profile.measure import Profiler
from baton.bench.profile.samples import DecodeSample, PrefillSample, Samples, TransferSample
from baton.bench.profile.write import NodeFacts, client_s, entry, write
from baton.core.errors import BatonError, FailedPrecondition, InvalidArgument, ResourceExhausted
from baton.router.machine_config import RouterConfig
from baton.runtime.client.aio import AsyncClient
from baton.sim.cost import MeasuredCost, StepWork
from baton.sim.profiles import profile
from tests.bench.records import record, results, run
from tests.fakes import StubConfig, StubNode, router_with

LIMITS = {
    "block_size": 16,
    "max_model_len": 4096,
    "max_batch_tokens": 256,
    "chunk_tokens": 256,
    "max_running": 64,
}
FACTS = NodeFacts("a model", 1024, 512, LIMITS, "a test")


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(low, high))


@given(seconds(1e-4, 0.1), st.floats(1e-5, 1e-2), seconds(1e-9, 1e-5))
def test_prefill_comes_back(fixed: float, per_token: float, per_pair: float) -> None:
    samples = []
    for tokens in (16, 64, 256, 512, 1024, 2048):
        steps = -(-tokens // 256)
        true_s = fixed * steps + per_token * tokens + per_pair * tokens * (tokens - 1) / 2
        samples.append(PrefillSample(tokens, steps, true_s, true_s + 0.004))
    found = fit.prefill(samples)
    assert all(value >= 0 for value in found)
    for sample in samples:
        assert fit.prefill_s(found, sample) == pytest.approx(sample.node_s, rel=1e-4)
    assert fit.noise(samples, found) < 1e-3
    assert fit.overhead_s(samples) == pytest.approx(0.004)


@given(st.lists(st.floats(1e-3, 0.1), min_size=3, max_size=3), seconds(1e-7, 1e-4))
def test_decode_comes_back_and_more_rows_are_never_faster(steps: list[float], context_s: float) -> None:
    rows = dict(zip((1, 4, 16), sorted(steps), strict=True))
    shapes = [(1, 16.0), (1, 1000.0), (4, 100.0), (16, 400.0)]
    samples = [DecodeSample(n, context, rows[n] + context_s * context) for n, context in shapes]
    found, per_token = fit.decode(samples)
    assert per_token == pytest.approx(context_s, rel=1e-3, abs=1e-9)
    assert list(found.values()) == sorted(found.values())
    assert found == pytest.approx(rows, rel=1e-3)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12))
def test_ascending_is_the_nearest_that_never_falls(values: list[float]) -> None:
    found = fit.ascending(values)
    assert len(found) == len(values)
    assert all(before <= after + 1e-12 for before, after in itertools.pairwise(found))
    assert sum(found) == pytest.approx(sum(values))
    if values == sorted(values):
        assert found == pytest.approx(values)
    off = sum((a - b) ** 2 for a, b in zip(found, values, strict=True))
    for other in (sorted(values), [sum(values) / len(values)] * len(values)):
        assert off <= sum((a - b) ** 2 for a, b in zip(other, values, strict=True)) + 1e-9


def test_one_wild_measurement_of_three_changes_nothing() -> None:
    steps = [DecodeSample(rows, 20.0 * rows, 0.01 * rows) for rows in (1, 2, 4) for _ in range(3)]
    wild = [*steps, DecodeSample(1, 500.0, 0.0101), DecodeSample(1, 500.0, 0.0101)]
    kept = fit.decode(wild)
    wild[0] = DecodeSample(1, 20.0, 5.0)
    assert fit.decode(wild) == kept


def test_noise_never_bends_a_fit_below_zero() -> None:
    dice = np.random.default_rng(3)
    for _ in range(50):
        y = dice.uniform(0.01, 1.0, 8)
        found = fit.nonnegative(dice.uniform(0.0, 1.0, (8, 3)), y)
        assert (found >= 0).all()
    assert fit.transfer([TransferSample(1000, 0.5), TransferSample(2000, 0.4)])[0] >= 0
    assert fit.transfer([]) == (0.0, 1e12)
    assert fit.transfer([TransferSample(n, 0.001 + n / 1e9) for n in (10**6, 10**7, 10**8)]) == (
        pytest.approx(0.001, rel=1e-3),
        pytest.approx(1e9, rel=1e-3),
    )


async def test_a_live_pair_is_measured_and_its_file_is_a_profile(tmp_path: Path) -> None:
    node = StubNode(config=StubConfig(step_s=0.01, prefill_s=0.05, max_model_len=700))
    async with router_with(node) as cluster, AsyncClient(cluster.app.address) as client:
        told: list[float] = []
        profiler = Profiler(client, Shape(331, 700, 256, 2), lambda what, share: told.append(share))
        samples = await profiler.measure(1)
        await cluster.all_idle()
    assert [(sample.tokens, sample.steps) for sample in samples.prefill] == [
        *[(tokens, 1) for tokens in (16, 64, 128, 256) for _ in range(3)],
        (512, 2),
    ]
    assert all(sample.ttft_s >= 0.05 for sample in samples.prefill)
    assert [sample.rows for sample in samples.decode] == [1, 2, 1]
    assert all(sample.step_s >= 0.005 for sample in samples.decode)
    assert told == sorted(told)
    assert told[-1] == 1.0
    path = tmp_path / "p.yaml"
    write(path, "mine", entry(samples, FACTS))
    found = profile(str(path))
    assert (found.name, found.num_blocks, found.chunk_tokens) == ("mine", 512, 256)
    assert found.cost.step_s(StepWork(0, 0.0, 0, 2, 0)) >= 0.005
    assert client_s(path) >= 0.0


async def test_targets_of_the_deployment_do_not_refuse_what_measures_it() -> None:
    strict = RouterConfig(admission="reject", ttft_s=1e-4, tpot_s=1e-5)
    node = StubNode(config=StubConfig(step_s=0.01, prefill_s=0.05, max_model_len=100))
    async with router_with(node, machine=strict) as cluster, AsyncClient(cluster.app.address) as client:
        for _ in range(3):  # it learns what the node takes, and that no target can be met
            with suppress(BatonError):
                await client.generate([5] * 16, max_tokens=4)
        with pytest.raises(ResourceExhausted):
            await client.generate([5] * 16, max_tokens=4)
        samples = await Profiler(client, Shape(331, 100, 256, 2), lambda what, share: None).measure(1)
    assert [sample.tokens for sample in samples.prefill] == [16, 16, 16]


def test_too_little_is_no_profile() -> None:
    with pytest.raises(FailedPrecondition, match="too few measurements"):
        entry(Samples(), FACTS)


@pytest.mark.parametrize("content", ["", "- 1", "a: 1", "a: {prefill: [1]}", "{"])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match="holds no profile"):
        profile(str(path))
    with pytest.raises(InvalidArgument, match="cannot read"):
        profile(str(tmp_path / "none.yaml"))


# ---- the twin --------------------------------------------------------------------------------------------


def live() -> Results:
    """A run whose deployment is the simulator itself."""
    made = results(run(rate=2.0, count=60))
    made.experiment = type(made.experiment)(
        **(
            {name: getattr(made.experiment, name) for name in made.experiment.__slots__}
            | {
                "prompt_tokens": "100-300",
                "output_tokens": "8-40",
                "duration_s": 30.0,
                "ttft_s": 2.0,
                "tpot_s": 0.2,
            }
        )
    )
    made.targets = [type(made.targets[0])("a", "grpc://a", "m", {"prefill": 1, "decode": 1})]
    return made


def test_a_deployment_like_the_simulator_is_predicted_exactly() -> None:
    made = live()
    kind = profile("smollm2-cpu-int8")
    (one,) = made.runs
    spec = cluster_of(made.targets[0], kind, 0.002)
    assert [node.role.value for node in spec.nodes] == ["prefill", "decode"]
    arrivals = arrivals_of(made, one)
    ended = sorted(simulated(made, one, spec, None), key=lambda result: result.number)
    assert len(ended) == len(arrivals)
    one.records = []
    for arrival, result in zip(arrivals, ended, strict=True):
        assert result.ttft_s is not None
        tokens = arrival.output_tokens
        each = record(result.number, arrival.at_s, result.ttft_s, result.tpot_s or 0.0, tokens)
        one.records.append(each)
    one.summary = summarise(one.records, 30.0)
    one.lateness_s = spread([0.0])
    found = twins(made, kind, 0.002)
    assert [twin.metric for twin in found] == ["TTFT P50", "TTFT P90", "TPOT P50", "TPOT P90"]
    assert all(twin.error == pytest.approx(0.0, abs=1e-6) for twin in found)
    slower = MeasuredCost((0.002, 1.5e-3, 1e-6), ((1, 0.02), (16, 0.08)), 3e-6)
    errors = [twin.error for twin in twins(made, type(kind)(**_fields(kind) | {"cost": slower}), 0.002)]
    assert all(error is not None and error > 0.3 for error in errors)


def _fields(kind: object) -> dict[str, object]:
    return {name: getattr(kind, name) for name in kind.__slots__}  # type: ignore[attr-defined]


def test_runs_that_do_not_count_are_not_simulated() -> None:
    made = live()
    made.runs[0].invalid = "late"
    with pytest.raises(FailedPrecondition, match="nothing to simulate"):
        twins(made, profile("smollm2-cpu-int8"), 0.0)


def test_errors_are_told_with_their_sign() -> None:
    cells = list(itertools.chain(twin_cells(Twin("a", 1.0, 0, "p", "TTFT P50", 0.5, 0.55, 0.1))))
    assert cells == ["a", "1", "1", "TTFT P50", "0.500", "0.550", "+10.0%"]
    assert twin_cells(Twin("a", 1.0, 0, "p", "TPOT P50", None, 0.55, None))[-1] == "-"
