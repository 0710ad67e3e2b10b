"""How long answers are, by those that ended last."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

KEEP = 256
ENOUGH = 16  # answers, from which on they tell
EVERY = 8  # answers, after which it is looked at anew
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)  # the middles of fifths
PRIOR_MEAN = 64.0  # tokens, if any of them may be the last
PRIOR = tuple([1 + round(-math.log(1.0 - place) * PRIOR_MEAN) for place in PLACES])


class AnswerLengths:
    """add: O(log KEEP) and a small move."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._since = 0
        self.usual = PRIOR

    def add(self, tokens: int) -> None:
        """An answer ended by itself. `usual` are the lengths, each as likely as the next, that stand for all;
        a guess as long as there were too few."""
        if len(self._latest) == KEEP:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        self._since += 1
        count = len(self._sorted)
        if count >= ENOUGH and self._since >= EVERY:
            self._since = 0
            self.usual = tuple(self._sorted[int(place * count)] for place in PLACES)
