"""A comparison of policies as tables and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from baton.sim.experiments.compare import Row, Table
from baton.sim.report.bars import Bar, bars
from baton.sim.report.figure import Mark
from baton.sim.report.page import page, section, table, tiles
from baton.sim.report.scale import Axis, number, seconds, share

HEAD = (
    "policy", "split", "highest rate", "x best published", "of perfect",
    "within targets", "TTFT P90", "TPOT P90", "at half that rate",
)  # fmt: skip
COLOUR = {"baseline": 9, "baton": 2, "oracle": 6}


def titles(found: Table) -> tuple[str, str]:
    """A line above the table, one below."""
    targets = [
        f"{name} {seconds(value)}"
        for name, value in (("TTFT", found.ttft_s), ("TPOT", found.tpot_s))
        if value is not None
    ]
    what = f"{found.requests:,} requests, {found.nodes} x {found.profile}, {', '.join(targets)}"
    below = "; ".join(
        (
            f"highest rate: requests/s of which {found.attainment:.0%} meet both targets",
            f"right of it all at {number(found.published_rate)}/s, where {found.best_published} sits",
            f"bound: {number(found.bound)}/s",
        )
    )
    return f"{found.setting}: {what}", below


def table_rows(found: Table) -> list[tuple[str, ...]]:
    """The head, then one row per policy, the best first within its kind."""
    return [HEAD, *(_row(found, row) for row in _ordered(found))]


def _ordered(found: Table) -> list[Row]:
    order = {"oracle": 0, "baton": 1, "baseline": 2}
    return sorted(found.rows, key=lambda row: (order[row.kind], row.contender != "Baton", -row.highest))


def _row(found: Table, row: Row) -> tuple[str, ...]:
    at = row.at_best
    return (
        row.contender,
        row.split,
        f"{number(row.highest)}/s",
        f"{row.highest / found.published_rate:.2f}" if found.published_rate else "–",
        f"{row.highest / found.perfect:.0%}" if found.perfect else "–",
        share(at.attained),
        seconds(at.ttft_p90_s),
        seconds(at.tpot_p90_s),
        share(row.at_half.attained) if row.at_half else "",
    )


def compare_page(tables: Sequence[Table]) -> str:
    parts = [tiles([_tile(found) for found in tables])]
    for found in tables:
        above, below = titles(found)
        head, *rows = table_rows(found)
        best = [i for i, row in enumerate(rows) if row[0] == "Baton"]
        parts.append(section(above, _rates(found), _attained(found), table(head, rows, best), note=below))
    count = sum(found.requests for found in tables)
    return page("Policies compared", f"{len(tables)} traces, {count:,} requests, simulated", parts)


def _tile(found: Table) -> tuple[str, str, str]:
    row = found.row("Baton")
    if row is None or not found.published_rate:
        return found.setting, "–", ""
    ratio = row.highest / found.published_rate
    return found.setting, f"× {ratio:.2f}", f"Baton's rate against {found.best_published}'s"


def _rates(found: Table) -> str:
    rows = [
        Bar(row.contender, row.highest, strong=row.contender == "Baton", colour=_colour(row))
        for row in sorted(found.rows, key=lambda row: -row.highest)
    ]
    marks = [Mark("bound", x=found.bound)]
    return bars(f"Highest rate with {found.attainment:.0%} within targets", rows, Axis("requests/s"), marks)


def _attained(found: Table) -> str:
    rows = [
        Bar(
            row.contender,
            row.at_best.attained,
            share(row.at_best.attained),
            strong=row.contender == "Baton",
            colour=_colour(row),
        )
        for row in sorted(found.rows, key=lambda row: -row.at_best.attained)
    ]
    axis = Axis("within targets, %", low=0.0, high=1.0, factor=100.0)
    return bars(f"All at {number(found.published_rate)}/s", rows, axis)


def _colour(row: Row) -> int:
    return 0 if row.contender == "Baton" else COLOUR[row.kind]
