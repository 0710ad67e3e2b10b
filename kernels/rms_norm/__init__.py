"""Root mean square norm (arXiv:1910.07467): x / sqrt(mean(x^2) + eps) * weight over the last dimension.

x: [..., size]; weight: [size]; same shape and dtype out.
"""

from __future__ import annotations

import torch

from baton.kernels.rms_norm import cpu, reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if x.device.type == "cpu":
        return cpu.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)
