"""Root mean square norm (arXiv:1910.07467): x / sqrt(mean(x^2) + eps) * weight over the last dimension.

x: [..., size], any strides but a contiguous last dimension; weight: [size]; same shape and dtype out. A
vector's result depends on that vector alone; one with a NaN or an infinity spoils no other.

`add_rms_norm` first adds `update`, of x's shape, to x in place: the residual stream of a decoder.
"""

from __future__ import annotations

import torch

from baton.kernels.rms_norm import cpu, reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if x.device.type == "cpu":
        return cpu.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x.add_(update)
    return rms_norm(x, weight, eps)
