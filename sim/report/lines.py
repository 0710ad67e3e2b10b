"""Lines over a common pair of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from baton.sim.report.figure import (
    BOTTOM,
    COLOURS,
    HEIGHT,
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
from baton.sim.report.scale import Axis, Scale, fit, number

MAX_POINTS = 1500  # of a line: more cannot be seen


@dataclass(frozen=True, slots=True)
class Series:
    """points: (x, y) with x ascending. step: y holds until the next point. dots: a mark at each point.
    colour: a number of the palette; None: by position."""

    name: str
    points: Sequence[tuple[float, float]]
    step: bool = False
    dots: bool = False
    colour: int | None = None


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis, marks: Sequence[Mark] = ()) -> str:
    """Series over a common pair of axes. What is not finite is left out, and interrupts its line."""
    shown = [(i if s.colour is None else s.colour, s) for i, s in enumerate(series)]
    xs = [px for s in series for px, _ in s.points] + [m.x for m in marks if m.x is not None]
    ys = [py for s in series for _, py in s.points] + [m.y for m in marks if m.y is not None]
    across = fit(x, xs, LEFT, WIDTH - RIGHT)
    up = fit(y, ys, HEIGHT - BOTTOM, TOP)
    body = [_grid(across, up, x.label, y.label)]
    body += [_mark(mark, across, up, x.factor, y.factor) for mark in marks]
    body += [_line(s, colour, across, up, (x.factor, y.factor)) for colour, s in shown]
    legend = [(s.name, colour) for colour, s in shown if s.name]
    return figure(title, legend, svg(HEIGHT, body))


def cdf(name: str, values: Sequence[float], colour: int | None = None) -> Series:
    """Share of values at or below x."""
    ordered = sorted(value for value in values if math.isfinite(value))
    count = len(ordered)
    every = max(1, count // 400)
    points = [(value, (i + 1) / count) for i, value in enumerate(ordered) if i % every == 0 or i == count - 1]
    return Series(name, points, colour=colour)


def _line(series: Series, colour: int, across: Scale, up: Scale, factors: tuple[float, float]) -> str:
    every = -(-len(series.points) // MAX_POINTS)
    last = len(series.points) - 1
    kept = [p for i, p in enumerate(series.points) if i == last or i % every == 0]
    runs: list[list[tuple[float, float]]] = [[]]
    for px, py in kept:
        if math.isfinite(px) and math.isfinite(py):
            runs[-1].append((across(px * factors[0]), up(py * factors[1])))
        elif runs[-1]:
            runs.append([])
    style = f"line l{colour % COLOURS}" + (" dashed" if (colour // 5) % 2 else "")
    out = []
    for run in runs:
        if not run:
            continue
        path = f"M{run[0][0]:.1f},{run[0][1]:.1f}"
        for ax, ay in run[1:]:
            path += f"H{ax:.1f}V{ay:.1f}" if series.step else f"L{ax:.1f},{ay:.1f}"
        out.append(f'<path class="{style}" d="{path}"><title>{escape(series.name)}</title></path>')
    if series.dots:
        for px, py in kept:
            if math.isfinite(px) and math.isfinite(py):
                ax, ay = across(px * factors[0]), up(py * factors[1])
                said = f"{series.name}: {number(px * factors[0])}, {number(py * factors[1])}"
                out.append(
                    f'<circle class="f{colour % COLOURS}" cx="{ax:.1f}" cy="{ay:.1f}" r="3.2">'
                    f"<title>{escape(said)}</title></circle>"
                )
    return "".join(out)


def _grid(across: Scale, up: Scale, x_label: str, y_label: str) -> str:
    out = [ticks_x(across, TOP, HEIGHT - BOTTOM)]
    for tick in up.ticks:
        y = up(tick)
        out.append(
            f'<path class="grid" d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text class="tick end" x="{LEFT - 7}" y="{y + 3.5:.1f}">{number(tick)}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(label_x(x_label, LEFT, HEIGHT))
    out.append(f'<text class="label" transform="translate(13,{middle}) rotate(-90)">{escape(y_label)}</text>')
    return "".join(out)


def _mark(mark: Mark, across: Scale, up: Scale, x_factor: float, y_factor: float) -> str:
    if mark.x is not None:
        return upright(mark.name, across(mark.x * x_factor), TOP, HEIGHT - BOTTOM)
    y = up((mark.y or 0.0) * y_factor)
    return (
        f'<path class="mark" d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}"/>'
        f'<text class="marked end" x="{WIDTH - RIGHT - 4}" y="{y - 5:.1f}">{escape(mark.name)}</text>'
    )
