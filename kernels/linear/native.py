"""Layers that the compiled kernels compute: which of them stores a weight how.

native_dense: fp32, bf16 and fp16 as they are. native_fp8: e4m3 codes. native_int: integer codes, and FP4.
"""

from __future__ import annotations

import torch

from baton.kernels.linear import native_dense, native_fp8, native_int
from baton.kernels.linear.checks import check
from baton.kernels.linear.native_linear import NativeLinear, Norm
from baton.kernels.quantize import Codes, QuantizedWeight

__all__ = ["NativeLinear", "Norm", "prepare"]


def prepare(weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None) -> NativeLinear:
    """The weight packed for the compiled kernels. InvalidArgument: see `Prepare`."""
    check(weight, bias)
    if isinstance(weight, torch.Tensor):
        return native_dense.prepare(weight, bias)
    if weight.kind is Codes.FP8:
        return native_fp8.prepare(weight, bias)
    return native_int.prepare(weight, bias)
