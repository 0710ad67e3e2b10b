"""Lanes of coloured spans over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from baton.sim.report.figure import BOTTOM, COLOURS, LEFT, RIGHT, TOP, WIDE, figure, label_x, svg, ticks_x
from baton.sim.report.scale import Axis, fit


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a lane, [from_s, until_s), coloured by `kind`."""

    from_s: float
    until_s: float
    kind: str


def lanes(title: str, rows: Sequence[tuple[str, Sequence[Span]]], kinds: Sequence[str], axis: Axis) -> str:
    """What each of many (nodes) was over time: one thin lane each, coloured by kind."""
    pitch = 22.0 if len(rows) <= 24 else max(2.0, 528.0 / len(rows))
    height = TOP + pitch * len(rows) + BOTTOM
    ends = [end for _, spans in rows for span in spans for end in (span.from_s, span.until_s)]
    across = fit(axis, ends, LEFT + 20.0, WIDE - RIGHT)
    body = [ticks_x(across, TOP, height - BOTTOM), label_x(axis.label, LEFT + 20.0, height, WIDE)]
    for i, (name, spans) in enumerate(rows):
        top = TOP + pitch * i
        if pitch >= 11.0:
            body.append(
                f'<text class="name" x="{LEFT + 12:.1f}" y="{top + pitch * 0.68:.1f}">{escape(name)}</text>'
            )
        for span in spans:
            start, end = across(span.from_s * axis.factor), across(span.until_s * axis.factor)
            colour, wide = kinds.index(span.kind) % COLOURS, max(0.5, end - start)
            said = f"{name}: {span.kind}, {span.from_s:.1f}–{span.until_s:.1f} s"
            body.append(
                f'<rect class="f{colour}" x="{start:.1f}" y="{top + pitch / 10:.1f}" width="{wide:.1f}" '
                f'height="{pitch * 0.8:.1f}" rx="{min(3.0, pitch / 8):.1f}">'
                f"<title>{escape(said)}</title></rect>"
            )
    legend = [(kind, i) for i, kind in enumerate(kinds)]
    return figure(title, legend, svg(height, body, WIDE), wide=True)
