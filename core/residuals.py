"""How far predictions are off: the latest ratios of measured to predicted, and their quantiles."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

KEEP = 128
ENOUGH = 16  # samples, from which their own quantiles count
PRIOR_WEIGHT = 8.0  # as many samples is the prior worth
PRIOR_SPREAD = 0.15  # scale of the logarithm; a ratio of 1.5 has one chance in sixteen
LEAST_SPREAD = 0.02  # nothing is as sure as a few alike measurements make it look
TENTHS = 2.0 * math.log(9.0)  # from the lowest tenth of a logistic distribution to the highest, in scales


class Residuals:
    """add: O(log KEEP) and a small move. Nonsense (not positive, not finite) is ignored. at_s: when that was,
    for whoever forgets by time; never before an earlier one's."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque()  # (when, ratio)
        self._sorted: list[float] = []
        self._stale = False
        self._middle, self._scale = 0.0, PRIOR_SPREAD

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, measured: float, predicted: float, at_s: float = 0.0) -> None:
        if not (0.0 < measured < math.inf and 0.0 < predicted < math.inf):
            return
        ratio = measured / predicted
        if len(self._latest) == KEEP:
            self._forget_oldest()
        self._latest.append((at_s, ratio))
        insort(self._sorted, ratio)
        self._stale = True

    def forget_before(self, at_s: float) -> None:
        """Measurements of other times."""
        while self._latest and self._latest[0][0] < at_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, ratio = self._latest.popleft()
        del self._sorted[bisect_left(self._sorted, ratio)]
        self._stale = True

    def quantile(self, share: float) -> float | None:
        """The ratio that `share` of the measurements did not exceed; None: there are too few to say."""
        count = len(self._sorted)
        if count < ENOUGH:
            return None
        return self._sorted[min(count - 1, int(share * count))]

    def chance_above(self, ratio: float) -> float:
        """How likely a measurement is more than `ratio` times what was predicted for it.

        By the logistic distribution of the ratios' logarithm with their median and their spread: smooth, as
        small differences of it are multiplied by the number of those whom they concern.
        """
        if ratio <= 0.0:
            return 1.0
        if self._stale:
            self._summarise()
        exponent = (math.log(ratio) - self._middle) / self._scale
        if exponent > 40.0:
            return 0.0
        return 1.0 / (1.0 + math.exp(exponent)) if exponent > -40.0 else 1.0

    def _summarise(self) -> None:
        self._stale = False
        ordered, count = self._sorted, len(self._sorted)
        if not count:
            self._middle, self._scale = 0.0, PRIOR_SPREAD
            return
        low, middle, high = (ordered[min(count - 1, int(share * count))] for share in (0.1, 0.5, 0.9))
        weight = count / (count + PRIOR_WEIGHT)
        self._middle = weight * math.log(middle)
        measured = (math.log(high) - math.log(low)) / TENTHS
        self._scale = max(LEAST_SPREAD, weight * measured + (1.0 - weight) * PRIOR_SPREAD)


def spread(share: float) -> float:
    """The logistic distribution's quantile, in standard deviations: where there are no data to ask."""
    return math.log(share / (1.0 - share)) * math.sqrt(3.0) / math.pi
