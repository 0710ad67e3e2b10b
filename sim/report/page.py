"""A report as one HTML file that needs nothing else: title, tiles of key figures, tables, figures.

page("Run", "what it was", [tiles([...]), section("Latency", lines(...), table(...))])
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from baton.sim.report.style import STYLE

Cell = str | int | float


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """A document. Titles are plain text; parts are HTML, as the functions here and the charts make."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><h1>{escape(title)}</h1><p class="sub">{escape(subtitle)}</p></header>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, *parts: str, note: str = "") -> str:
    """note: a sentence in plain text under the heading. Figures stand side by side where there is room."""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section><h2>{escape(title)}</h2>{said}<div class="parts">{"".join(parts)}</div></section>'


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """(what, value, a word on it) each."""
    cells = "".join(
        f'<div class="tile"><span>{escape(what)}</span><b>{escape(value)}</b>'
        f"<small>{escape(word)}</small></div>"
        for what, value, word in figures
    )
    return f'<div class="tiles">{cells}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], best: Sequence[int] = ()) -> str:
    """Numbers to the right, in figures of one width. best: rows to stand out."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr{' class=best' if i in best else ''}>{''.join(_cell(value) for value in row)}</tr>"
        for i, row in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """What a run was given, as a quiet list."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{rows}</dl>"


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _cell(value: Cell) -> str:
    text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
    numeric = text[:1] in "+-–≥≤×" or text[:1].isdigit()
    return f"<td{' class=n' if numeric else ''}>{escape(text)}</td>"
