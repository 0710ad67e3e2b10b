"""Results for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from baton.bench.load.results import Found, Pool, Results, Run, Twin
from baton.bench.load.spread import Spread
from baton.bench.load.summary import Summary

COUNTS = ("ok", "shed", "failed", "open")


def tables(results: Results) -> list[Table]:
    """Narrow enough for a terminal of 80 columns; the report has more."""
    shown = [outcome_table(results.pools), latency_table(results.pools)]
    if results.found:
        shown.append(found_table(results.found, results.experiment.attainment))
    if results.twins:
        shown.append(twins_table(results.twins))
    return shown


def counts(summary: Summary) -> list[str]:
    """Cells, in the order of COUNTS."""
    return [f"{n:,}" for n in (summary.ok, summary.rejected, summary.failed, summary.unfinished)]


def outcome_table(pools: Sequence[Pool]) -> Table:
    """rate: what was asked for; offered: what came of it within the window, by the dice."""
    shown = plain_table("target", "rate", "offered", "sent", *COUNTS, "tok/s", "good/s", "attained")
    for pool in pools:
        summary, goodput = pool.summary, pool.summary.goodput
        shown.add_row(
            pool_name(pool),
            f"{pool.rate:.3g}",
            f"{summary.offered_rate:.3g}",
            f"{summary.requests:,}",
            *counts(summary),
            f"{summary.output_tps:,.1f}",
            f"{goodput.rate:.3g}",
            f"{goodput.attainment:.1%}",
        )
    return shown


def latency_table(pools: Sequence[Pool]) -> Table:
    """P50, P90 and P99 of each."""
    shown = plain_table("P50 P90 P99", "rate", "TTFT s", "TPOT ms", "ITL ms")
    for pool in pools:
        summary = pool.summary
        cells = (triple(summary.ttft_s), triple(summary.tpot_s, 1e3), triple(summary.itl_s, 1e3))
        shown.add_row(pool_name(pool), f"{pool.rate:.3g}", *cells)
    return shown


def pool_name(pool: Pool) -> str:
    """With a mark where the figures must not be used."""
    return f"{pool.target} (!)" if pool.invalid else pool.target


def triple(spread: Spread, factor: float = 1.0) -> str:
    values = (spread.p50, spread.p90, spread.p99)
    return " ".join(f"{'-' if value is None else three_digits(value * factor):>5}" for value in values)


def three_digits(value: float) -> str:
    """0.0123, 0.123, 1.23, 12.3, 123, 1234."""
    if value < 0.1:
        return f"{value:.4f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def plain_table(*names: str) -> Table:
    shown = Table(box=None, title_justify="left", pad_edge=False, collapse_padding=True)
    for number, name in enumerate(names):
        shown.add_column(name, justify="right" if number else "left", no_wrap=True)
    return shown


def found_table(found: Sequence[Found], attainment: float) -> Table:
    shown = plain_table(f"highest rate, {attainment:.0%} within targets", "holds at", "fails at", "goodput/s")
    for each in found:
        failed = "-" if each.failed_rate is None else f"{each.failed_rate:.3g}"
        shown.add_row(each.target, f"{each.rate:.3g}", failed, f"{each.goodput:.3g}")
    return shown


def twins_table(twins: Sequence[Twin]) -> Table:
    shown = plain_table("simulated", "rate", "round", "", "measured s", "predicted s", "error")
    for twin in twins:
        shown.add_row(*twin_cells(twin))
    return shown


def twin_cells(twin: Twin) -> list[str]:
    measured, predicted = (
        "-" if value is None else three_digits(value) for value in (twin.measured_s, twin.predicted_s)
    )
    error = "-" if twin.error is None else f"{twin.error:+.1%}"
    return [twin.target, f"{twin.rate:.3g}", str(twin.round + 1), twin.metric, measured, predicted, error]


def complaints(runs: Sequence[Run]) -> list[str]:
    """What is wrong with runs, a line each: those that do not count, and why requests failed."""
    found = [f"{_name(run)} does not count: {run.invalid}" for run in runs if run.invalid]
    for run in runs:
        for error, count in run.summary.errors.items():
            found.append(f"{_name(run)}: {count} of {run.summary.requests}: {error}")
    return found


def _name(run: Run) -> str:
    return f"{run.target} at {run.rate:.3g}/s, round {run.round + 1}"
