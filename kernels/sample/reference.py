"""The choice by a full sort, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from baton.kernels.sample.types import NO_TOKEN, Choice, Survey
from baton.kernels.sample.weights import least, needed, target, weights


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    return [_row(row, *choice) for row, choice in zip(logits, choices, strict=True)]


def survey(logits: torch.Tensor, count: int) -> Survey:
    """count: 0 .. vocab."""
    best = logits.amax(-1)
    mass = [
        int(weights(row, high).sum()) if high > -math.inf else 0
        for row, high in zip(logits, best.tolist(), strict=True)
    ]
    top = logits.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return Survey(best, torch.tensor(mass, dtype=torch.int64, device=logits.device), top)


def _row(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, noise: float
) -> int:
    best = float(logits.max())
    if not best > -math.inf:
        return NO_TOKEN
    order = logits.argsort(descending=True, stable=True)
    if temperature == 0.0:
        return int(order[0])
    weight = weights(logits, best, temperature)
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1.0:
        running = weight[order].cumsum(0)
        order = order[: int((running < needed(top_p, int(running[-1]))).sum()) + 1]
    order = order[weight[order] >= least(min_p)]
    ids = order.sort().values
    running = weight[ids].cumsum(0)
    return int(ids[int((running <= target(noise, int(running[-1]))).sum())])
