"""Choose one token from one row of logits: temperature, top_k, top_p, min_p, then invert the CDF.

Host arrays in fp64 on purpose: the choice is then the same whatever device made the logits, and depends on
nothing but the row. Candidate ids are kept in ascending order throughout: the CDF runs over ids.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.request import SamplingParams

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_SHORTLIST = 4096  # candidates worth sorting at once
_BUCKETS = 4096
_DEEPEST = 64.0  # e^-64: what lies below cannot hold the boundary of any top_p < 1 in fp64


def sample(logits: Floats, sampling: SamplingParams, noise: float) -> int:
    """A token id. logits: [vocab], not all -inf, no NaN. noise: in [0, 1)."""
    scaled = _scaled(logits, sampling.temperature)
    ids: Ids | None = None  # None: all of them
    if 0 < sampling.top_k < len(scaled):
        ids = top_ids(scaled, sampling.top_k)
        scaled = scaled[ids]
    weights = np.exp(scaled)  # the best has weight 1
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, weights, sampling.top_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if sampling.min_p > 0.0:
        kept = np.flatnonzero(weights >= sampling.min_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    picked = _invert(weights, noise)
    return picked if ids is None else int(ids[picked])


def top_ids(values: Floats, count: int) -> Ids:
    """Ids of the `count` largest values, ascending; among equal values the lowest ids."""
    if count >= len(values):
        return np.arange(len(values))
    # torch's selection is several times quicker than numpy's, and only its k-th value is used: no tie rule.
    threshold = torch.from_numpy(values).topk(count, sorted=False).values.min().item()
    ids = np.flatnonzero(values >= threshold)
    surplus = len(ids) - count
    if surplus:
        tied = np.flatnonzero(values[ids] == threshold)
        ids = np.delete(ids, tied[-surplus:])
    return ids


def _scaled(logits: Floats, temperature: float) -> Floats:
    """(logits - max) / temperature: the best is 0, so no temperature, however small, can overflow it."""
    best = logits.max()
    if best == np.inf:  # overflowed in the model: those share everything
        return np.where(logits == np.inf, 0.0, -np.inf)
    shifted: Floats = logits - best
    if temperature != 1.0:
        with np.errstate(over="ignore"):
            shifted /= temperature
    return shifted


def _nucleus(scaled: Floats, weights: Floats, top_p: float) -> Ids:
    """Positions of the smallest set of most likely tokens holding at least `top_p` of the mass, ascending.

    Among equally likely ones the lowest positions are taken. Sorting a whole vocabulary costs milliseconds,
    so only what is near the boundary is sorted: a shortlist where the mass is concentrated, else the bucket
    of a histogram over `scaled` in which the boundary falls.
    """
    need = top_p * float(weights.sum())
    shortlist = np.flatnonzero(weights >= 1e-3)
    if len(shortlist) <= _SHORTLIST and float(weights[shortlist].sum()) >= need:
        return shortlist[_prefix(weights[shortlist], need)]
    depth = min(-float(scaled.min()), _DEEPEST) or 1.0
    bucket = (np.maximum(scaled, -depth) * ((1 - _BUCKETS) / depth)).astype(np.int32)
    mass = np.cumsum(np.bincount(bucket, weights=weights, minlength=_BUCKETS))
    edge = min(int(np.searchsorted(mass, need)), _BUCKETS - 1)
    before = float(mass[edge - 1]) if edge else 0.0
    inside = np.flatnonzero(bucket == edge)
    keep = bucket < edge
    keep[inside[_prefix(weights[inside], need - before)]] = True
    return np.flatnonzero(keep)


def _prefix(weights: Floats, need: float) -> Ids:
    """Ascending positions of the fewest largest weights that sum to `need` (all of them if they do not)."""
    order = np.argsort(-weights, kind="stable")
    count = int(np.searchsorted(np.cumsum(weights[order]), need)) + 1
    return np.sort(order[:count])


def _invert(weights: Floats, noise: float) -> int:
    """The first position whose cumulative weight exceeds noise * total; never one of weight 0."""
    cumulative = torch.from_numpy(weights).cumsum(0).numpy()  # sequential, as numpy's, and quicker
    picked = int(np.searchsorted(cumulative, noise * cumulative[-1], side="right"))
    if picked < len(weights):
        return picked
    return int(np.flatnonzero(weights)[-1])  # noise * total rounded up to the total
