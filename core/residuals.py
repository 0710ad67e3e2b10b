"""How far predictions are off: the latest ratios of measured to predicted, and their quantiles."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque

KEEP = 128
ENOUGH = 16  # samples, from which their own quantiles count
PRIOR_WEIGHT = 8.0  # as many samples is the prior worth, where a share of them is asked for
PRIOR_SPREAD = 0.15  # of the logarithm; a ratio of 1.5 has one chance in sixteen


class Residuals:
    """add: O(log KEEP) and a small move. Nonsense (not positive, not finite) is ignored."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, measured: float, predicted: float) -> None:
        if not (0.0 < measured < math.inf and 0.0 < predicted < math.inf):
            return
        ratio = measured / predicted
        if len(self._latest) == KEEP:
            oldest = self._latest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._latest.append(ratio)
        insort(self._sorted, ratio)

    def quantile(self, share: float) -> float | None:
        """The ratio that `share` of the measurements did not exceed; None: there are too few to say."""
        count = len(self._sorted)
        if count < ENOUGH:
            return None
        return self._sorted[min(count - 1, int(share * count))]

    def chance_above(self, ratio: float) -> float:
        """How likely a measurement is more than `ratio` times what was predicted for it."""
        count = len(self._sorted)
        above = count - bisect_right(self._sorted, ratio)
        return (above + PRIOR_WEIGHT * _prior_chance(ratio)) / (count + PRIOR_WEIGHT)


def spread(share: float) -> float:
    """The logistic distribution's quantile, in standard deviations: where there are no data to ask."""
    return math.log(share / (1.0 - share)) * math.sqrt(3.0) / math.pi


def _prior_chance(ratio: float) -> float:
    if ratio <= 0.0:
        return 1.0
    exponent = min(50.0, max(-50.0, math.log(ratio) / PRIOR_SPREAD))
    return 1.0 / (1.0 + math.exp(exponent))
