"""Weights of floats, stored as they come."""

from __future__ import annotations

import torch

from baton.kernels.linear.native_linear import NativeLinear
from baton.kernels.linear.native_panels import PanelLinear

_STORED = (torch.float32, torch.bfloat16, torch.float16)


def prepare(weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
    """weight: [out, in]; fp32, bf16 and fp16 stay what they are, all else becomes fp32. Sums are fp32."""
    return PanelLinear(weight if weight.dtype in _STORED else weight.float(), bias)
