from __future__ import annotations

import torch


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    # The sign of the rotated half lies in sin: one roll instead of a negated concatenation.
    other = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(other, sin)
