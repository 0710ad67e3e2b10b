from __future__ import annotations

from typing import NamedTuple

import torch


class Rotation(NamedTuple):
    """Both [tokens, 1, D]: cosines twice over; sines, negative in the first half: the rotated vector is
    x * cos + (x with its halves exchanged) * sin."""

    cos: torch.Tensor
    sin: torch.Tensor


class Slots(NamedTuple):
    """Where each token's KV goes: [tokens] int64 each. 0 <= offsets < block_size."""

    blocks: torch.Tensor
    offsets: torch.Tensor


class QkNorm(NamedTuple):
    """Weights [D] of the norms of query and key heads (qwen3)."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float
