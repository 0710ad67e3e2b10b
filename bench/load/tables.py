"""Results for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from baton.bench.load.results import Found, Pool, Results, Run
from baton.bench.load.spread import Spread
from baton.bench.load.summary import Summary


def tables(results: Results) -> list[Table]:
    shown = [pools_table(results.pools)]
    if results.found:
        shown.append(found_table(results.found, results.experiment.attainment))
    return shown


def pools_table(pools: Sequence[Pool]) -> Table:
    shown = Table(title="seconds from the time a request was due: P50 / P90 / P99", title_justify="left")
    shown.add_column("target")
    for name in ("rate", "requests", "ok", "rejected", "failed", "TTFT", "TPOT ms", "ITL ms", "E2E"):
        shown.add_column(name, justify="right")
    for name in ("tokens/s", "goodput/s", "attained"):
        shown.add_column(name, justify="right")
    for pool in pools:
        shown.add_row(pool.target, f"{pool.rate:.3g}", *_cells(pool.summary))
    return shown


def _cells(summary: Summary) -> list[str]:
    goodput = summary.goodput
    return [
        f"{summary.requests:,}",
        f"{summary.ok:,}",
        f"{summary.rejected:,}",
        f"{summary.failed:,}",
        triple(summary.ttft_s),
        triple(summary.tpot_s, 1e3, 1),
        triple(summary.itl_s, 1e3, 1),
        triple(summary.e2e_s),
        f"{summary.output_tps:,.1f}",
        f"{goodput.rate:.3g}",
        f"{goodput.attainment:.1%} ({goodput.low:.0%}-{goodput.high:.0%})",
    ]


def triple(spread: Spread, factor: float = 1.0, digits: int = 3) -> str:
    """P50 / P90 / P99."""
    values = (spread.p50, spread.p90, spread.p99)
    return " / ".join("-" if value is None else f"{value * factor:.{digits}f}" for value in values)


def found_table(found: Sequence[Found], attainment: float) -> Table:
    shown = Table(title=f"highest rate with {attainment:.0%} within the targets", title_justify="left")
    for name in ("target", "holds at", "fails at", "goodput/s"):
        shown.add_column(name, justify="left" if name == "target" else "right")
    for each in found:
        failed = "-" if each.failed_rate is None else f"{each.failed_rate:.3g}"
        shown.add_row(each.target, f"{each.rate:.3g}", failed, f"{each.goodput:.3g}")
    return shown


def complaints(runs: Sequence[Run]) -> list[str]:
    """What is wrong with runs, a line each: those that do not count, and why requests failed."""
    found = [f"{_name(run)} does not count: {run.invalid}" for run in runs if run.invalid]
    for run in runs:
        for error, count in run.summary.errors.items():
            found.append(f"{_name(run)}: {count} of {run.summary.requests}: {error}")
    return found


def _name(run: Run) -> str:
    return f"{run.target} at {run.rate:.3g}/s, round {run.round + 1}"
