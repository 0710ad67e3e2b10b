"""A sample in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from baton.sim.results import percentile

SHOWN = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Spread:
    """count: 0 says that there was nothing to measure, and then the rest is None."""

    count: int = 0
    mean: float | None = None
    low: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    high: float | None = None


def spread(values: Iterable[float | None]) -> Spread:
    """None among the values: was not measured, and does not count."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return Spread()
    p50, p90, p95, p99 = (percentile(ordered, share) for share in SHOWN)
    mean = math.fsum(ordered) / len(ordered)
    return Spread(len(ordered), mean, ordered[0], p50, p90, p95, p99, ordered[-1])
