"""Figures of a measurement: distributions, curves over the rate, the course of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from baton.bench.load.record import Record
from baton.bench.load.results import Pool, Results, Run
from baton.bench.load.spread import Spread
from baton.bench.load.summary import Summary
from baton.sim.report.bars import Bar, bars
from baton.sim.report.figure import Mark
from baton.sim.report.lines import Series, cdf, lines
from baton.sim.report.scale import Axis

MOST_SERIES = 10  # as many as there are colours

Values = Callable[[Record], list[float]]


def distributions(results: Results) -> list[str]:
    """Of every target at the highest rate it was measured at."""
    groups = list(busiest(results).items())[:MOST_SERIES]
    ttft, tpot = results.experiment.ttft_s, results.experiment.tpot_s
    colours = colours_of(results)
    requests, gaps = "% of requests", "% of gaps"

    def drawn(title: str, what: str, in_ms: bool, values: Values, limit: float | None) -> str:
        series = [
            cdf(name, [v for record in records for v in values(record)], colours[name])
            for name, records in groups
        ]
        axis = Axis("ms", log=True, factor=1e3) if in_ms else Axis("s", log=True)
        marks = [] if limit is None else [Mark("target", x=limit)]
        return lines(title, series, axis, Axis(what, low=0.0, high=1.0, factor=100.0), marks)

    return [
        drawn("Time to first token", requests, False, lambda r: one(r.ttft_s), ttft),
        drawn("Time per token after the first (TPOT)", requests, True, lambda r: one(r.tpot_s), tpot),
        drawn("Gaps between tokens (ITL)", gaps, True, lambda r: r.gaps_s(), tpot),
        drawn("To the last token", requests, False, lambda r: one(r.e2e_s), None),
    ]


def over_rates(results: Results) -> list[str]:
    """Curves over the rate; none unless two rates were measured."""
    if len({pool.rate for pool in counting(results)}) < 2:
        return []
    experiment = results.experiment
    rate = Axis("requests per second", low=0.0)
    percent = Axis("% within the targets", low=0.0, high=1.0, factor=100.0)
    wanted = Mark(f"{experiment.attainment:.0%}", y=experiment.attainment)
    ttft = [] if experiment.ttft_s is None else [Mark("target", y=experiment.ttft_s)]
    tpot = [] if experiment.tpot_s is None else [Mark("target", y=experiment.tpot_s)]
    return [
        lines("Attainment", _curves(results, lambda s: s.goodput.attainment), rate, percent, [wanted]),
        lines("Goodput", _curves(results, lambda s: s.goodput.rate), rate, Axis("per second", low=0.0)),
        lines("TTFT, P90", _curves(results, lambda s: s.ttft_s.p90), rate, Axis("s", low=0.0), ttft),
        lines(
            "TPOT, P90",
            _curves(results, lambda s: s.tpot_s.p90),
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


def courses(runs: Sequence[Run], colours: Mapping[str, int]) -> list[str]:
    """Runs of one length over their time, together."""
    end_s = max((record.ended_s for run in runs for record in run.records), default=0.0)
    across = Axis("seconds since the run began", low=0.0, high=max(end_s, runs[0].until_s))
    marks = [Mark("counted from", x=runs[0].from_s)] if runs[0].from_s > 0 else []
    marks += [Mark("until", x=runs[0].until_s)]
    first = [
        Series(run.target, _over_time(run.records), dots=True, colour=colours[run.target]) for run in runs
    ]
    under_way = [
        Series(run.target, in_flight(run.records), step=True, colour=colours[run.target]) for run in runs
    ]
    return [
        lines("Time to first token, by when a request was due", first, across, Axis("s", low=0.0), marks),
        lines("Requests under way", under_way, across, Axis("requests", low=0.0), marks),
    ]


def colours_of(results: Results) -> dict[str, int]:
    """A target has one colour all over the page."""
    return {target.name: number for number, target in enumerate(results.targets)}


def counting(results: Results) -> list[Pool]:
    return [pool for pool in results.pools if not pool.invalid]


def busiest(results: Results) -> dict[str, list[Record]]:
    """By target, what counts of its runs at the highest rate."""
    rates: dict[str, float] = {}
    for pool in counting(results):
        rates[pool.target] = max(pool.rate, rates.get(pool.target, 0.0))
    found: dict[str, list[Record]] = {}
    for run in results.runs:
        if run.good and run.rate == rates.get(run.target):
            found.setdefault(run.target, []).extend(run.counted)
    return found


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


def _curves(results: Results, value: Callable[[Summary], float | None]) -> list[Series]:
    points: dict[str, list[tuple[float, float]]] = {}
    for pool in counting(results):
        if (found := value(pool.summary)) is not None:
            points.setdefault(pool.target, []).append((pool.rate, found))
    colours = colours_of(results)
    return [Series(name, sorted(each), dots=True, colour=colours[name]) for name, each in points.items()]


def _over_time(records: Sequence[Record]) -> list[tuple[float, float]]:
    return sorted((record.intended_s, record.ttft_s) for record in records if record.ttft_s is not None)


def spread_cells(spread: Spread, factor: float, digits: int) -> list[str]:
    """P50, P90, P99."""
    values = (spread.p50, spread.p90, spread.p99)
    return ["–" if value is None else f"{value * factor:,.{digits}f}" for value in values]
