"""Figures of a measurement: distributions, curves over the rate, the course of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.bench.load.record import Record
from baton.bench.load.results import Pool, Results, Run
from baton.bench.load.spread import Spread
from baton.bench.load.summary import Summary
from baton.sim.report.bars import Bar, bars
from baton.sim.report.figure import Mark
from baton.sim.report.lines import Series, cdf, lines
from baton.sim.report.scale import Axis

MOST_SERIES = 10  # as many as there are colours


def distributions(results: Results) -> list[str]:
    """Of every target at every rate; at most `MOST_SERIES` curves, those of the highest rates."""
    groups = grouped(results)[-MOST_SERIES:]
    ttft, tpot = results.experiment.ttft_s, results.experiment.tpot_s

    def drawn(title: str, label: str, values: Callable[[Record], list[float]], limit: float | None) -> str:
        series = [cdf(name, [v for r in records for v in values(r)]) for name, records in groups]
        in_ms = label.endswith("ms")
        axis = Axis(label, log=True, factor=1e3 if in_ms else 1.0)
        marks = [] if limit is None else [Mark("target", x=limit)]
        return lines(title, series, axis, Axis("% of requests", low=0.0, high=1.0, factor=100.0), marks)

    return [
        drawn("Time to first token", "s", lambda r: one(r.ttft_s), ttft),
        drawn("Time per token after the first (TPOT)", "ms", lambda r: one(r.tpot_s), tpot),
        drawn("Gaps between tokens (ITL)", "ms", lambda r: r.gaps_s(), tpot),
        drawn("To the last token", "s", lambda r: one(r.e2e_s), None),
    ]


def over_rates(results: Results) -> list[str]:
    """Curves over the rate; none unless two rates were measured."""
    if len({pool.rate for pool in results.pools}) < 2:
        return []
    experiment = results.experiment
    rate = Axis("requests per second", low=0.0)
    percent = Axis("% within the targets", low=0.0, high=1.0, factor=100.0)
    wanted = Mark(f"{experiment.attainment:.0%}", y=experiment.attainment)
    ttft = [] if experiment.ttft_s is None else [Mark("target", y=experiment.ttft_s)]
    tpot = [] if experiment.tpot_s is None else [Mark("target", y=experiment.tpot_s)]
    return [
        lines("Attainment", _curves(results.pools, lambda s: s.goodput.attainment), rate, percent, [wanted]),
        lines("Goodput", _curves(results.pools, lambda s: s.goodput.rate), rate, Axis("per second", low=0.0)),
        lines("TTFT, P90", _curves(results.pools, lambda s: s.ttft_s.p90), rate, Axis("s", low=0.0), ttft),
        lines(
            "TPOT, P90",
            _curves(results.pools, lambda s: s.tpot_s.p90),
            rate,
            Axis("ms", low=0.0, factor=1e3),
            tpot,
        ),
    ]


def found_rates(results: Results) -> str:
    """The highest rates that a search found."""
    best = max((each.rate for each in results.found), default=0.0)
    rows = [
        Bar(each.target, each.rate, f"{each.rate:.3g}/s", strong=each.rate == best) for each in results.found
    ]
    return bars("Highest rate that keeps the attainment", rows, Axis("requests per second", low=0.0))


def courses(run: Run) -> list[str]:
    """One run over its time."""
    shown = [
        Series("TTFT", _over_time(run.records), dots=True),
        Series("open requests", in_flight(run.records)),
    ]
    end_s = max((record.ended_s for record in run.records), default=0.0)
    across = Axis("seconds since the run began", low=0.0, high=max(end_s, run.until_s))
    marks = [Mark("counted from", x=run.from_s)] if run.from_s > 0 else []
    marks += [Mark("until", x=run.until_s)]
    return [
        lines("Time to first token, by when a request was due", shown[:1], across, Axis("s", low=0.0), marks),
        lines("Requests under way", [_stepped(shown[1])], across, Axis("requests", low=0.0), marks),
    ]


def grouped(results: Results) -> list[tuple[str, list[Record]]]:
    """Counted records of runs that count, by target and rate."""
    groups: dict[tuple[float, str], list[Record]] = {}
    for run in results.runs:
        if not run.invalid and run.stopped_s is None:
            groups.setdefault((run.rate, run.target), []).extend(run.counted)
    rates = len({rate for rate, _ in groups}) > 1
    many = len({target for _, target in groups}) > 1
    return [(_label(target, rate, rates, many), group) for (rate, target), group in sorted(groups.items())]


def in_flight(records: Sequence[Record]) -> list[tuple[float, float]]:
    """(time, how many requests are due and not over), at every change."""
    changes = sorted(
        [(record.intended_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    )
    found, count = [(0.0, 0.0)], 0
    for at_s, change in changes:
        count += change
        found.append((at_s, float(count)))
    return found


def one(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _label(target: str, rate: float, rates: bool, many: bool) -> str:
    if rates and many:
        return f"{target}, {rate:.3g}/s"
    return f"{rate:.3g}/s" if rates else target


def _curves(pools: Sequence[Pool], value: Callable[[Summary], float | None]) -> list[Series]:
    points: dict[str, list[tuple[float, float]]] = {}
    for pool in pools:
        if (found := value(pool.summary)) is not None:
            points.setdefault(pool.target, []).append((pool.rate, found))
    return [Series(target, sorted(each), dots=True) for target, each in points.items()]


def _over_time(records: Sequence[Record]) -> list[tuple[float, float]]:
    return sorted((record.intended_s, record.ttft_s) for record in records if record.ttft_s is not None)


def _stepped(series: Series) -> Series:
    return Series(series.name, series.points, step=True, colour=1)


def spread_cells(spread: Spread, factor: float, digits: int) -> list[str]:
    """P50, P90, P99."""
    values = (spread.p50, spread.p90, spread.p99)
    return ["–" if value is None else f"{value * factor:,.{digits}f}" for value in values]
