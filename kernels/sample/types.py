from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

NO_TOKEN = -1
VOCAB_LIMIT = 1 << 19  # so many weights may overflow their sum


class SampleParams(NamedTuple):
    """Per row; all [rows] and on the logits' device. temperature >= 0, top_p, min_p in [0, 1] and noise in
    [0, 1) are fp64; top_k >= 0 is int64."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    noise: torch.Tensor


class Survey(NamedTuple):
    """The natural log probability of a token is logit - best - ln(mass / 2**44), to 1e-9 or so.

    best: [rows] fp32, each row's largest logit, NaN if there is one in it. mass: [rows] int64, the sum of the
    weights at temperature 1; 0 without a distribution. top: [rows, count] int64, the first `count` tokens in
    order; not to be used where best is NaN.
    """

    best: torch.Tensor
    mass: torch.Tensor
    top: torch.Tensor


def params(rows: Sequence[tuple[float, int, float, float, float]]) -> SampleParams:
    """From each row's (temperature, top_k, top_p, min_p, noise), on the CPU."""
    temperature, top_k, top_p, min_p, noise = zip(*rows, strict=True) if rows else ((),) * 5
    exact = torch.float64
    return SampleParams(
        torch.tensor(temperature, dtype=exact),
        torch.tensor(top_k, dtype=torch.int64),
        torch.tensor(top_p, dtype=exact),
        torch.tensor(min_p, dtype=exact),
        torch.tensor(noise, dtype=exact),
    )
