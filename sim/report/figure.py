"""What all charts share: the frame, ticks, reference lines, and the figure around the SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from baton.sim.report.scale import Scale, number

WIDTH, HEIGHT = 540.0, 270.0  # about as many pixels wide as it is shown, so that text keeps its size
WIDE = 1110.0  # of a figure over both columns
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 20.0, 44.0
COLOURS = 10


@dataclass(frozen=True, slots=True)
class Mark:
    """A reference line at a value of one axis, with its name (a target, a limit)."""

    name: str
    x: float | None = None
    y: float | None = None


def figure(title: str, legend: Sequence[tuple[str, int]], drawing: str, *, wide: bool = False) -> str:
    keys = "".join(
        f'<li><i class="b{colour % COLOURS}{" dashed" if (colour // 5) % 2 else ""}"></i>{escape(name)}</li>'
        for name, colour in legend
    )
    listed = f'<ul class="legend">{keys}</ul>' if keys else ""
    shape = ' class="full"' if wide else ""
    return f"<figure{shape}><figcaption>{escape(title)}</figcaption>{listed}{drawing}</figure>"


def svg(height: float, body: Sequence[str], width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img">{"".join(body)}</svg>'


def ticks_x(across: Scale, top: float, bottom: float) -> str:
    return "".join(
        f'<path class="grid" d="M{across(tick):.1f},{top}V{bottom}"/>'
        f'<text class="tick" x="{across(tick):.1f}" y="{bottom + 16}">{number(tick)}</text>'
        for tick in across.ticks
    )


def label_x(label: str, left: float, height: float, width: float = WIDTH) -> str:
    return f'<text class="label" x="{(left + width - RIGHT) / 2:.1f}" y="{height - 6}">{escape(label)}</text>'


def upright(name: str, x: float, top: float, bottom: float) -> str:
    side = (" end", 3) if x > WIDTH * 0.7 else ("", -3)
    return (
        f'<path class="mark" d="M{x:.1f},{top}V{bottom}"/>'
        f'<text class="marked{side[0]}" x="{x + side[1]:.1f}" y="{top - 6}">{escape(name)}</text>'
    )
