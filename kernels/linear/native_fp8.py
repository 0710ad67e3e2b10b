"""Weights of e4m3 codes with scales."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.linear import native_dense
from baton.kernels.linear.native_linear import NativeLinear
from baton.kernels.linear.native_panels import PanelLinear
from baton.kernels.quantize import QuantizedWeight, dequantize

_NAN = 0x7F  # beside the sign bit
_SCALE_UNIT = 256  # of the kernel, which reads codes as fp16 numbers of other exponents


def prepare(weight: QuantizedWeight, bias: torch.Tensor | None = None) -> NativeLinear:
    """InvalidArgument: some code is NaN. What no checkpoint has (inputs in an order of their own, offsets,
    scales near the end of fp32) is stored in fp32."""
    if bool(((weight.codes.view(torch.uint8) & _NAN) == _NAN).any()):
        raise InvalidArgument(f"an fp8 weight of shape {list(weight.shape)} holds NaN")
    scale = weight.scale.float() * (weight.global_scale * _SCALE_UNIT)
    if weight.in_order is not None or weight.offset is not None or not bool(scale.isfinite().all()):
        return native_dense.prepare(dequantize(weight), bias)
    return PanelLinear(
        weight.codes,
        bias,
        scale=scale,
        group=weight.group,
        activation_group=min(weight.activation_group, weight.group) if weight.activations == "fp8" else 0,
    )
