"""A figure, beside the limit that the same run measured on the same machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """target: the least ratio (or, where lower is better, the most) that we accept."""

    name: str
    value: float
    unit: str
    limit: float
    limit_name: str
    target: float
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        return self.value / self.limit if self.limit else 0.0

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.higher_is_better else self.ratio <= self.target
