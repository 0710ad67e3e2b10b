"""Horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from baton.sim.report.figure import (
    BOTTOM,
    COLOURS,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Mark,
    figure,
    label_x,
    svg,
    ticks_x,
    upright,
)
from baton.sim.report.scale import Axis, fit, number


@dataclass(frozen=True, slots=True)
class Bar:
    """note: said at the bar's end in place of its value. strong: the one to look at."""

    name: str
    value: float
    note: str = ""
    strong: bool = False
    colour: int = 0


def bars(title: str, rows: Sequence[Bar], axis: Axis, marks: Sequence[Mark] = ()) -> str:
    """Horizontal bars, one a row, the name to the left, the value at the end."""
    pitch = 28.0
    height = TOP + pitch * len(rows) + BOTTOM
    left = LEFT + 6.6 * max([len(row.name) for row in rows], default=0) - 30.0
    values = [row.value for row in rows] + [m.x for m in marks if m.x is not None] + [0.0]
    across = fit(axis, values, left, WIDTH - RIGHT - 70.0)
    body = [ticks_x(across, TOP, height - BOTTOM), label_x(axis.label, left, height)]
    for i, row in enumerate(rows):
        top = TOP + pitch * i + 4.0
        value = row.value * axis.factor if math.isfinite(row.value) else across.low
        end = across(value)
        said = row.note or number(value)
        name = escape(row.name)
        strong = " strong" if row.strong else ""
        kind, wide = f"f{row.colour % COLOURS}{strong}", max(1.0, end - left)
        body.append(
            f'<text class="name{strong}" x="{left - 8:.1f}" y="{top + 14:.1f}">{name}</text>'
            f'<rect class="bar {kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="20" '
            f'rx="3"><title>{name}: {escape(said)}</title></rect>'
            f'<text class="said" x="{end + 6:.1f}" y="{top + 14.5:.1f}">{escape(said)}</text>'
        )
    for mark in marks:
        if mark.x is not None:
            body.append(upright(mark.name, across(mark.x * axis.factor), TOP, height - BOTTOM))
    return figure(title, [], svg(height, body))
