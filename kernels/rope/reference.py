from __future__ import annotations

import torch


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    half = x.shape[-1] // 2
    first, second = x[..., :half].clone(), x[..., half:].clone()
    x[..., :half] = first * cos[..., :half] + second * sin[..., :half]
    x[..., half:] = second * cos[..., half:] + first * sin[..., half:]
