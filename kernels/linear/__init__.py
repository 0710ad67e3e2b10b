"""y = x @ weight.T + bias.

x: [rows, in]; weight: [out, in], contiguous, as checkpoints store it; bias: [out] or None;
returns [rows, out], not necessarily contiguous.
"""

from __future__ import annotations

import torch

from baton.kernels.linear import cpu, reference


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.device.type == "cpu":
        return cpu.linear(x, weight, bias)
    return reference.linear(x, weight, bias)
