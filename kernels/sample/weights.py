"""The weights' definition, operation by operation; see the package."""

from __future__ import annotations

import math

import torch

BITS = 44
ONE = 1 << BITS
LOG2_E = 1.4426950408889634
LARGEST_FACTOR = 1e300  # of log2(e) / temperature: for temperatures that would divide to infinity
LEAST_EXPONENT = -64.0  # the weight is 0 long before

_PIECE = 8192  # so many fit into a core's cache, and into memory that an allocator keeps

# ln(2)**k / k!: 2**r for |r| <= 1/2 to within 2**-47.
SERIES = (
    1.0,
    0.6931471805599453,
    0.24022650695910072,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
    1.5252733804059841e-05,
    1.321548679014431e-06,
    1.01780860092397e-07,
    7.054911620801123e-09,
    4.4455382718708116e-10,
)


def weights(logits: torch.Tensor, best: float, temperature: float = 1.0) -> torch.Tensor:
    """[n] fp32 to int64. best: the row's largest logit, not NaN or -inf; temperature > 0."""
    if best == math.inf:
        return torch.where(logits == math.inf, ONE, 0)
    factor = min(LOG2_E / temperature, LARGEST_FACTOR)
    return torch.cat([_piece(part.double() - best, factor) for part in logits.split(_PIECE)])


def _piece(below: torch.Tensor, factor: float) -> torch.Tensor:
    t = below.mul_(factor).clamp_(min=LEAST_EXPONENT)
    whole = t.round()
    rest = t.sub_(whole)
    power = torch.full_like(rest, SERIES[-1])
    for term in reversed(SERIES[:-1]):
        power.mul_(rest).add_(term)
    scale = (whole.long() + (BITS + 1023) << 52).view(torch.float64)  # 2**(whole + BITS)
    return power.mul_(scale).round_().long()


def needed(share: float, mass: int) -> int:
    """The least sum of weights that holds `share` of `mass`, at least 1."""
    return min(max(math.ceil(share * float(mass)), 1), mass)


def target(noise: float, mass: int) -> int:
    """Chosen is the token whose weight is the first to take the running sum above this."""
    return min(math.floor(noise * float(mass)), mass - 1)


def least(min_p: float) -> int:
    return math.ceil(min_p * ONE)
