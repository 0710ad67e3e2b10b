"""A measurement, or a comparison of two, as an HTML page."""

from __future__ import annotations

from dataclasses import asdict

from baton.bench.load.compare import Comparison, cells
from baton.bench.load.report_charts import (
    MOST_SERIES,
    colours_of,
    courses,
    distributions,
    found_rates,
    over_rates,
    spread_cells,
)
from baton.bench.load.results import Results, Run
from baton.bench.load.tables import complaints, counts, pool_name, twin_cells
from baton.sim.report.page import facts, page, section, table, tiles

HEAD = ("target", "rate", "offered", "requests", "ok", "rejected", "failed", "unfinished")
HEAD_TIMES = ("target", "rate")
HEAD_END = ("tokens/s", "goodput/s", "within targets", "95 % interval")
HEAD_LATENCY = ("TTFT P50, s", "P90", "P99", "TPOT P50, ms", "P90", "P99", "ITL P50, ms", "P90", "P99")
HEAD_LATENCY_END = ("to the end P50, s", "P90", "P99")
BUSIEST = "Of each target at its highest rate."
COUNTED = "Latencies count from the time at which a request was due, whenever it was sent."


def page_of(results: Results) -> str:
    names = ", ".join(target.name for target in results.targets)
    parts = [tiles(_tiles(results)), _outcome(results)]
    if results.found:
        parts.append(
            section("Highest rate", found_rates(results), _tries(results), note=_targets_said(results))
        )
    if curves := over_rates(results):
        parts.append(section("Over the rate", *curves, note=_targets_said(results)))
    if any(run.good for run in results.runs):
        parts.append(section("Distributions", *distributions(results), note=BUSIEST))
    if results.twins:
        rows = [twin_cells(twin) for twin in results.twins]
        head = ("target", "rate", "round", "", "measured, s", "predicted, s", "error")
        note = f"The same requests in the simulator, with the profile {results.twins[0].profile}."
        parts.append(section("What the simulator says", table(head, rows), note=note))
    if runs := _telling(results):
        note = "The first round at each target's highest rate."
        parts.append(section("The course of a run", *courses(runs, colours_of(results)), note=note))
    parts.append(_generator(results))
    return page(f"Load on {names}", _subtitle(results), [*parts, _asked(results)])


def page_of_comparison(found: Comparison) -> str:
    head = ("", "a", "b", "b - a (95 %)", "b / a (95 %)", "b is")
    parts = []
    for pair in found.pairs:
        rows = [cells(metric, difference) for metric, difference in pair.differences]
        said = f"a is {pair.a.name} ({pair.a.requests:,} requests), b is {pair.b.name} ({pair.b.requests:,})."
        parts.append(section(f"At {pair.a.rate:.3g} per second", table(head, rows), note=said))
    if found.notes:
        parts.append(section("To be kept in mind", facts([("", note) for note in found.notes])))
    said = "Intervals by bootstrap over blocks of neighbouring requests."
    return page("Two measurements side by side", said, parts)


def _tiles(results: Results) -> list[tuple[str, str, str]]:
    """Of the best target: the one with the most goodput."""
    counting = [pool for pool in results.pools if not pool.invalid]
    if not counting:
        return [("runs that count", "0", "why not: see The generator")]
    best = max(counting, key=lambda pool: pool.summary.goodput.rate)
    where, summary = f"{best.target} at {best.rate:.3g}/s", best.summary
    return [
        ("goodput", f"{summary.goodput.rate:.3g}/s", where),
        ("within targets", f"{summary.goodput.attainment:.1%}", where),
        ("TTFT, P90", _seconds(summary.ttft_s.p90), where),
        ("TPOT, P90", _ms(summary.tpot_s.p90), where),
        ("output", f"{summary.output_tps:,.0f} tokens/s", where),
    ]


def _outcome(results: Results) -> str:
    rows, times = [], []
    for pool in results.pools:
        summary, goodput, name = pool.summary, pool.summary.goodput, [pool_name(pool), f"{pool.rate:.3g}"]
        rows.append(
            [
                *name,
                f"{summary.offered_rate:.3g}",
                f"{summary.requests:,}",
                *counts(summary),
                f"{summary.output_tps:,.1f}",
                f"{goodput.rate:.3g}",
                f"{goodput.attainment:.1%}",
                f"{goodput.low:.0%} to {goodput.high:.0%}",
            ]
        )
        times.append(
            [
                *name,
                *spread_cells(summary.ttft_s, 1.0, 3),
                *spread_cells(summary.tpot_s, 1e3, 1),
                *spread_cells(summary.itl_s, 1e3, 1),
                *spread_cells(summary.e2e_s, 1.0, 2),
            ]
        )
    best = max(range(len(rows)), key=lambda i: results.pools[i].summary.goodput.rate, default=0)
    marked = [best] if len(rows) > 1 else []
    outcomes = table((*HEAD, *HEAD_END), rows, marked)
    latencies = table((*HEAD_TIMES, *HEAD_LATENCY, *HEAD_LATENCY_END), times, marked)
    return section("Outcome", outcomes, latencies, note=f"{_targets_said(results)} {COUNTED}")


def _tries(results: Results) -> str:
    """What a search did, in its order."""
    rows = [
        [
            run.target,
            f"{run.rate:.3g}",
            str(run.round + 1),
            f"{run.summary.goodput.counted:,}",
            f"{run.summary.goodput.attainment:.1%}",
            "" if run.stopped_s is None else f"beyond hope after {run.stopped_s:.1f} s",
        ]
        for run in results.runs
    ]
    return table(("target", "rate", "round", "requests by then", "within targets", ""), rows)


def _generator(results: Results) -> str:
    head = ("run", "requests sent", "late by, P50 ms", "P99", "most", "event loop late by, P99 ms", "counts")
    rows = [
        [
            _name(run),
            f"{len(run.records):,}",
            *(_bare_ms(value) for value in (run.lateness_s.p50, run.lateness_s.p99, run.lateness_s.high)),
            _bare_ms(run.lag_s.p99),
            run.invalid or ("ended early" if run.stopped_s is not None else "yes"),
        ]
        for run in results.runs
    ]
    said = complaints(results.runs)
    more = [facts([("", line) for line in said])] if said else []
    note = "What the measuring program itself may have added. A run for which it was too late does not count."
    return section("The generator", table(head, rows), *more, note=note)


def _telling(results: Results) -> list[Run]:
    """One run of each target: that of the highest rate that was not ended early."""
    found: dict[str, Run] = {}
    for run in results.runs:
        if run.good and (run.target not in found or run.rate > found[run.target].rate):
            found[run.target] = run
    return list(found.values())[:MOST_SERIES]


def _asked(results: Results) -> str:
    said = [
        (name, "–" if value is None else str(value)) for name, value in asdict(results.experiment).items()
    ]
    where = [(f"{t.name}", f"{t.url} {t.model}".strip()) for t in results.targets]
    return section("What was asked for", facts([*where, *said, *results.machine.items()]))


def _subtitle(results: Results) -> str:
    experiment = results.experiment
    prompt, output = experiment.prompt_tokens or "the trace's", experiment.output_tokens or "the trace's"
    rounds = "1 round" if experiment.rounds == 1 else f"{experiment.rounds} rounds"
    return (
        f"{experiment.arrivals} arrivals, {prompt} tokens of prompt, {output} of answer, "
        f"{experiment.duration_s:g} s, {rounds}. {results.made_at}, baton {results.version}"
    )


def _targets_said(results: Results) -> str:
    experiment = results.experiment
    targets = []
    if experiment.ttft_s is not None:
        targets.append(f"TTFT ≤ {experiment.ttft_s:g} s")
    if experiment.tpot_s is not None:
        targets.append(f"TPOT ≤ {experiment.tpot_s * 1e3:g} ms")
    if not targets:
        return "No targets were set: every whole answer is within them."
    met = "both" if len(targets) > 1 else "it"
    return f"Targets: {' and '.join(targets)}. Goodput: requests per second that met {met}."


def _name(run: Run) -> str:
    return f"{run.target} at {run.rate:.3g}/s, round {run.round + 1}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:.1f} ms"


def _bare_ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:.1f}"
