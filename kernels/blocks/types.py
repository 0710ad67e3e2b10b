from __future__ import annotations

from typing import NamedTuple

import torch


class KvVectors(NamedTuple):
    """values: [blocks, layers, 2, tokens, heads, head_dim], codes where scales are given; scales: the same
    without head_dim, bfloat16."""

    values: torch.Tensor
    scales: torch.Tensor | None = None
