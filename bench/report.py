"""A figure, beside the limit that the same run measured on the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """target: the least ratio (or, where lower is better, the most) that we accept; None: only shown."""

    name: str
    value: float
    unit: str
    limit: float
    limit_name: str
    target: float | None
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        return self.value / self.limit if self.limit else 0.0

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.higher_is_better else self.ratio <= self.target


def table(figures: Sequence[Figure]) -> Table:
    shown = Table("figure", "measured", "limit", "ratio", "target", "", box=None)
    for figure in figures:
        shown.add_row(
            figure.name,
            f"{figure.value:,.4g} {figure.unit}",
            f"{figure.limit:,.4g} ({figure.limit_name})",
            f"{figure.ratio:.3f}",
            *_verdict(figure),
        )
    return shown


def _verdict(figure: Figure) -> tuple[str, str]:
    if figure.target is None:
        return "", ""
    least = f"{'>=' if figure.higher_is_better else '<='} {figure.target:g}"
    return least, "[green]met[/]" if figure.met else "[red]missed[/]"
