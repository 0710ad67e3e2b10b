"""The choice without a sort of the whole vocabulary, which would cost milliseconds a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from baton.kernels.sample.types import NO_TOKEN, Choice, Survey
from baton.kernels.sample.weights import ONE, least, needed, target, weights

_SHORTLIST = 4096  # candidates worth sorting at once
_LISTED = ONE >> 10
_BUCKETS = 4096
_DEPTH = 32.0  # in e-folds at the row's temperature: what lies deeper has no weight


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    best = logits.argmax(-1)  # the first of equal maxima; of a NaN if there is one
    high = logits.gather(-1, best[:, None])[:, 0].tolist()
    chosen: list[int] = best.tolist()
    for i, (temperature, top_k, top_p, min_p, noise) in enumerate(choices):
        if not high[i] > -math.inf:
            chosen[i] = NO_TOKEN
        elif temperature > 0.0:
            chosen[i] = _Row(logits[i], high[i], temperature, top_k).choose(top_p, min_p, noise)
    return chosen


def survey(logits: torch.Tensor, count: int) -> Survey:
    """count: 0 .. vocab."""
    best = logits.amax(-1)
    top = torch.empty(len(logits), count, dtype=torch.int64)
    mass = torch.zeros(len(logits), dtype=torch.int64)
    for i, high in enumerate(best.tolist()):
        if high > -math.inf:
            mass[i] = weights(logits[i], high).sum()
        if count and not math.isnan(high):
            ids = _first(logits[i], count)
            top[i] = ids[logits[i][ids].argsort(descending=True, stable=True)]
    return Survey(best, mass, top)


class _Row:
    """ids: those that are left, ascending; None: all. values, weights: theirs."""

    def __init__(self, logits: torch.Tensor, best: float, temperature: float, top_k: int) -> None:
        self.ids = _first(logits, top_k) if 0 < top_k < len(logits) else None
        self.values = logits if self.ids is None else logits[self.ids]
        self.weights = weights(self.values, best, temperature)
        self._best, self._temperature = best, temperature

    def choose(self, top_p: float, min_p: float, noise: float) -> int:
        if top_p < 1.0:
            self._keep(self._nucleus(top_p))
        if min_p > 0.0:
            self._keep(_places(self.weights >= least(min_p)))
        running = self.weights.cumsum(0)
        wanted = target(noise, int(running[-1]))
        picked = int(torch.searchsorted(running, wanted, right=True))
        return picked if self.ids is None else int(self.ids[picked])

    def _keep(self, places: torch.Tensor) -> None:
        self.ids = places if self.ids is None else self.ids[places]
        self.values, self.weights = self.values[places], self.weights[places]

    def _nucleus(self, top_p: float) -> torch.Tensor:
        """Places of the fewest first tokens with `top_p` of the weight, ascending: from a shortlist where the
        weight is concentrated, else from the bucket of a histogram in which the boundary falls."""
        need = needed(top_p, int(self.weights.sum()))
        shortlist = _places(self.weights >= _LISTED)
        if len(shortlist) <= _SHORTLIST and int(self.weights[shortlist].sum()) >= need:
            return shortlist[self._prefix(shortlist, need)]
        bucket = self._buckets()
        mass = torch.zeros(_BUCKETS, dtype=torch.int64).scatter_add_(0, bucket, self.weights).cumsum(0)
        edge = int(torch.searchsorted(mass, need))
        inside = _places(bucket == edge)
        keep = bucket < edge
        keep[inside[self._prefix(inside, need - (int(mass[edge - 1]) if edge else 0))]] = True
        return _places(keep)

    def _prefix(self, places: torch.Tensor, need: int) -> torch.Tensor:
        """Which of `places`, ascending, are the fewest first tokens whose weights sum to `need`."""
        order = self.values[places].argsort(descending=True, stable=True)
        count = int(torch.searchsorted(self.weights[places[order]].cumsum(0), need)) + 1
        return order[:count].sort().values

    def _buckets(self) -> torch.Tensor:
        """A bucket for each token, the most likely in 0; equal logits share one."""
        if self._best == math.inf:
            return torch.where(self.values == math.inf, 0, _BUCKETS - 1)
        below = self._best - self.values.double()
        depth = min(float(below.max()), _DEPTH * self._temperature) or 1.0
        return (below.clamp_(max=depth).div_(depth)).mul_(_BUCKETS - 1).long()


def _first(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` ids in order, ascending."""
    if count >= len(logits):
        return torch.arange(len(logits))
    threshold = logits.topk(count, sorted=False).values.min()
    ids = _places(logits >= threshold)
    surplus = len(ids) - count
    if not surplus:
        return ids
    keep = torch.ones(len(ids), dtype=torch.bool)
    keep[_places(logits[ids] == threshold)[-surplus:]] = False
    return ids[keep]


def _places(wanted: torch.Tensor) -> torch.Tensor:
    """Where it is true. By numpy, which is several times as quick at it as torch."""
    return torch.from_numpy(np.flatnonzero(wanted.numpy()))
