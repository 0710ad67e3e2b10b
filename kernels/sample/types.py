from __future__ import annotations

from typing import NamedTuple

import torch

NO_TOKEN = -1
VOCAB_LIMIT = 1 << 19  # so many weights may overflow their sum


class Choice(NamedTuple):
    """How a row's token is chosen: temperature, top_k >= 0, top_p and min_p in [0, 1], noise in [0, 1)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    noise: float


class Survey(NamedTuple):
    """The natural log probability of a token is logit - best - ln(mass / 2**44), to 1e-9 or so.

    best: [rows] fp32, each row's largest logit, NaN if there is one in it. mass: [rows] int64, the sum of the
    weights at temperature 1; 0 without a distribution. top: [rows, count] int64, the first `count` tokens in
    order; not to be used where best is NaN.
    """

    best: torch.Tensor
    mass: torch.Tensor
    top: torch.Tensor
