"""Targets in turn, searches, settings: with a router and a scripted server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from baton.bench.load import generator
from baton.bench.load.experiment import Experimenter
from baton.bench.load.generator import Limits
from baton.bench.load.measure import Question, measure
from baton.bench.load.one_run import Settings
from baton.bench.load.plan import token_writer
from baton.bench.load.record import Outcome
from baton.bench.load.results import Results, Run
from baton.bench.load.target import Call, Clock, Facts, Options
from baton.bench.load.targets import parse_targets
from baton.bench.load.workload import Workload
from baton.core.errors import InvalidArgument, Unavailable
from baton.core.request import Slo
from tests.bench.openai_server import Script, serving
from tests.fakes import StubConfig, StubNode, router_with


class Slots:
    """A target without a wire: `slots` requests at a time take `each_s` each, others wait."""

    chat = False
    url = "nowhere"

    def __init__(self, name: str, slots: int, each_s: float) -> None:
        self.name = name
        self._free = asyncio.Semaphore(slots)
        self._each_s = each_s

    async def open(self) -> Facts:
        return Facts("m", 300)

    def prepare(self, shot: object) -> Call:
        async def call(record: object, clock: Clock) -> None:
            async with self._free:
                await asyncio.sleep(self._each_s)
            record.chunks.append((clock(), 1))  # type: ignore[attr-defined]
            record.outcome = Outcome.OK  # type: ignore[attr-defined]

        return call

    async def close(self) -> None: ...


TURN_S = 1e-6


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes while all sleep, and then at once: no machine is too slow for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._select = self._selector.select
        self._selector.select = self._leap

    def time(self) -> float:
        return self._now_s

    def _leap(self, timeout: float | None = None) -> list[Any]:
        self._now_s += max(timeout or 0.0, TURN_S)
        found: list[Any] = self._select(0)
        return found


def settings(**changes: object) -> Settings:
    base = {
        "workload": Workload("9", "3", cv=0.0),
        "slo": Slo(5.0, 1.0),
        "duration_s": 1.0,
        "settle_s": 0.0,
        "max_lateness_s": 10.0,
        "limits": Limits(20.0, 20.0),
    }
    return Settings(**(base | changes))  # type: ignore[arg-type]


def shown(*args: object) -> None: ...


async def test_targets_take_turns_with_the_same_load() -> None:
    runs: list[Run] = []
    targets = [Slots("a", 9, 0.0), Slots("b", 9, 0.0)]
    writers = dict.fromkeys("ab", token_writer(300))
    asked = settings(rounds=3, duration_s=0.2, workload=Workload("5-90", "1"))
    await Experimenter(targets, writers, asked, runs.append).rates([20.0, 40.0])
    assert [run.target for run in runs] == ["a", "b", "a", "b", "b", "a", "b", "a", "a", "b", "a", "b"]
    assert [run.rate for run in runs[:4]] == [20.0, 20.0, 40.0, 40.0]
    times = [[(r.intended_s, r.prompt_tokens) for r in run.records] for run in runs]
    assert times[0] == times[1]
    assert times[0] != times[4]
    assert [run.round for run in runs] == [0] * 4 + [1] * 4 + [2] * 4


def test_the_search_finds_what_a_server_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, 0.1 s each: 20 per second, and at 40 the last of a second waits for a second."""
    loop = LeapingLoop()
    monkeypatch.setattr(generator, "time", SimpleNamespace(perf_counter=loop.time))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_search())


async def _search() -> None:
    runs: list[Run] = []
    targets = [Slots("a", 2, 0.1), Slots("b", 4, 0.1)]
    writers = dict.fromkeys("ab", token_writer(300))
    asked = settings(slo=Slo(ttft_s=0.3), attainment=0.9)
    found = await Experimenter(targets, writers, asked, runs.append).find(20.0, 0.5)
    by_name = {each.target: each for each in found}
    assert 5.0 <= by_name["a"].rate <= 30.0
    assert by_name["b"].rate > by_name["a"].rate
    assert by_name["a"].failed_rate is not None
    assert by_name["a"].goodput == pytest.approx(by_name["a"].rate, rel=0.2)
    stopped = [run for run in runs if run.stopped_s is not None]
    assert stopped, "a rate beyond hope is not run to its end"
    assert not any(run.good for run in stopped)


async def test_a_late_generator_s_run_does_not_count() -> None:
    runs: list[Run] = []
    asked = settings(max_lateness_s=0.0)
    await Experimenter([Slots("a", 9, 0.0)], {"a": token_writer(300)}, asked, runs.append).rates([20.0])
    assert "ms late (P99), 0 ms are allowed" in runs[0].invalid
    assert not runs[0].good


async def test_baton_and_an_openai_server_side_by_side() -> None:
    kept: list[Results] = []
    async with (
        router_with(StubNode(config=StubConfig(prefill_s=0.05))) as cluster,
        serving(Script(first_s=0.05)) as server,
    ):
        targets = parse_targets([f"b=grpc://{cluster.app.address}", f"o={server.url}"], Options())
        asked = settings(rounds=2, settle_s=0.01)
        results = await measure(targets, asked, Question((8.0,)), shown, kept.append)
        await cluster.all_idle()
    assert kept[-1] is results
    assert [facts.model for facts in results.targets] == ["stub", "scripted"]
    for pool in results.pools:
        assert (pool.rounds, pool.summary.ok, pool.summary.requests) == (2, 14, 14)
        assert pool.summary.goodput.attainment == 1.0
        assert pool.summary.ttft_s.low is not None
        assert pool.summary.ttft_s.low >= 0.05
        assert pool.summary.output_tokens.mean == 3
    assert max(max(body["prompt"]) for body in server.bodies) < 331, "the vocabulary that Baton tells"
    assert [len(body["prompt"]) for body in server.bodies].count(9) == 14
    assert len(server.bodies) == 16, "a trial before each run"


async def test_what_cannot_be_is_told_before_anything_is_sent() -> None:
    async with serving(Script()) as server:
        targets = parse_targets([server.url], Options())
        for asked, message in (
            (settings(warmup_s=0.6, tail_s=0.5), "longer than --warmup and --tail together"),
            (settings(attainment=0.0), "must be above 0"),
            (settings(slo=Slo(-1.0)), "slo.ttft_s"),
            (settings(), "no target tells its vocabulary"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                await measure(targets, asked, Question((1.0,)), shown, shown)
        assert not server.bodies
    with pytest.raises(Unavailable, match="nothing answers"):
        await measure(targets, settings(), Question((1.0,), vocab_size=99), shown, shown)


async def test_a_model_that_is_not_there() -> None:
    async with router_with(StubNode()) as cluster:
        targets = parse_targets([f"grpc://{cluster.app.address}"], Options(model="other"))
        with pytest.raises(Unavailable, match="serves no model other"):
            await measure(targets, settings(), Question((1.0,)), shown, shown)


@pytest.mark.parametrize(
    "text", ["", "a", "ftp://h:1", "grpc://", "grpc://h", "x=", "x=h:1", "grpc://h:99999", "http://"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_targets([text], Options())


def test_addresses_and_names() -> None:
    texts = [
        "grpc://[::1]:7",
        "x=grpc://h:1",
        "http://h:2/",
        "y=http://h/sub/v1",
        "c=http://h:3/v1/chat/completions",
    ]
    found = parse_targets(texts, Options())
    assert [target.name for target in found] == ["[::1]:7", "x", "h:2", "y", "c"]
    assert [target.url for target in found[2:]] == [
        "http://h:2/v1/completions",
        "http://h/sub/v1/completions",
        "http://h:3/v1/chat/completions",
    ]
    assert [target.chat for target in found] == [False, False, False, False, True]
    with pytest.raises(InvalidArgument, match="two are called x"):
        parse_targets(["x=grpc://h:1", "x=grpc://h:2"], Options())
