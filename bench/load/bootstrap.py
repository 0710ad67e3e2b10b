"""How far a difference between two samples of requests may be chance: bootstrap by blocks.

Requests that come close together share their queue, so single requests are not independent; what is drawn
again is runs of neighbours, in order of their time (moving blocks, H. R. Künsch, Ann. Stat. 17, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sample = NDArray[np.float64]
Statistic = Callable[[Sample], Sample]
"""From rows of values (NaN: not measured) to one number per row."""


@dataclass(frozen=True, slots=True)
class Difference:
    """b - a, with the interval that holds it at 95 %. ratio: b / a. None where it cannot be computed."""

    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None

    @property
    def clear(self) -> bool:
        """The interval leaves out "no difference"."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def quantile_of(share: float) -> Statistic:
    """share in [0, 1]; straight between neighbours."""

    def compute(rows: Sample) -> Sample:
        ordered = np.sort(rows, axis=1)  # NaN last
        counts = np.isfinite(rows).sum(axis=1)
        places = share * np.maximum(counts - 1, 0)
        below = places.astype(np.int64)
        above = np.minimum(below + 1, np.maximum(counts - 1, 0))
        low, high = (np.take_along_axis(ordered, place[:, None], axis=1)[:, 0] for place in (below, above))
        return np.asarray(np.where(counts > 0, low + (places - below) * (high - low), np.nan))

    return compute


def mean(rows: Sample) -> Sample:
    counts = np.isfinite(rows).sum(axis=1)
    sums = np.nansum(rows, axis=1)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def compared(
    a: Sequence[float | None],
    b: Sequence[float | None],
    statistic: Statistic,
    *,
    seed: int = 0,
    rounds: int = 2000,
) -> Difference:
    """Values of requests in order of their time; None: not measured."""
    dice = np.random.default_rng(seed)
    first, second = _array(a), _array(b)
    one, two = _at(first, statistic), _at(second, statistic)
    if one is None or two is None:
        return Difference(one, two, None, None, None, None, None, None)
    many_a, many_b = (_resampled(each, statistic, dice, rounds) for each in (first, second))
    low, high = _interval(many_b - many_a)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_low, ratio_high = _interval(many_b / many_a)
    ratio = two / one if one else None
    return Difference(one, two, two - one, low, high, ratio, ratio_low, ratio_high)


def block_length(count: int) -> int:
    """About the square root: long enough for a queue, short enough for many."""
    return max(1, round(math.sqrt(count)))


def _array(values: Sequence[float | None]) -> Sample:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _at(sample: Sample, statistic: Statistic) -> float | None:
    if not len(sample):
        return None
    value = float(statistic(sample[None])[0])
    return value if math.isfinite(value) else None


def _resampled(sample: Sample, statistic: Statistic, dice: np.random.Generator, rounds: int) -> Sample:
    count = len(sample)
    length = block_length(count)
    blocks = -(-count // length)
    starts = dice.integers(0, count, (rounds, blocks))
    places = (starts[:, :, None] + np.arange(length)).reshape(rounds, -1)[:, :count] % count
    return statistic(sample[places])


def _interval(values: Sample) -> tuple[float | None, float | None]:
    kept = values[np.isfinite(values)]
    if not len(kept):
        return None, None
    low, high = np.percentile(kept, (2.5, 97.5))
    return float(low), float(high)
