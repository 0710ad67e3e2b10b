"""The highest rate that still holds, by doubling and bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from baton.core.errors import InvalidArgument


@dataclass(slots=True)
class RateSearch:
    """Ask `next_rate`, try that rate, `tell` whether it held; until `next_rate` is None.

    Rates are halved or doubled from `start` until one holds and one does not, then bisected (in logarithms)
    until they are within `precision` of each other. A rate at or below `floor` is not tried, nor one above
    `ceiling`. `best` is the highest that held (0: none did), `least_bad` the lowest that did not.
    """

    start: float
    precision: float = 0.05
    floor: float = 0.01
    ceiling: float = 1e4
    best: float = 0.0
    least_bad: float = math.inf
    tries: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.start <= self.ceiling:
            raise InvalidArgument(f"must lie in [{self.floor:g}, {self.ceiling:g}], got {self.start:g}")
        if not self.precision > 0:
            raise InvalidArgument(f"must be greater than 0, got {self.precision:g}", field="precision")

    @property
    def failed(self) -> float | None:
        """The lowest rate that did not hold; None: all did."""
        return None if self.least_bad == math.inf else self.least_bad

    def next_rate(self) -> float | None:
        if not self.tries:
            return self.start
        if self.least_bad == math.inf:
            return None if self.best >= self.ceiling else min(self.best * 2, self.ceiling)
        if self.best == 0.0:
            return None if self.least_bad <= self.floor else max(self.least_bad / 2, self.floor)
        if self.least_bad <= self.best * (1 + self.precision):
            return None
        return math.sqrt(self.best * self.least_bad)

    def tell(self, rate: float, held: bool) -> None:
        """A rate that held below one that did not, or the other way round, is noise: what was told last
        wins."""
        self.tries.append((rate, held))
        if held:
            self.best = max(self.best, rate)
            if self.least_bad <= rate:
                self.least_bad = math.inf
        else:
            self.least_bad = min(self.least_bad, rate)
            if self.best >= rate:
                self.best = 0.0
