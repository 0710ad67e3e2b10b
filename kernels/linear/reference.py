"""The product in plain torch, in any dtype that torch multiplies."""

from __future__ import annotations

import torch

from baton.kernels.linear.checks import check
from baton.kernels.linear.plain import PlainLinear
from baton.kernels.quantize import QuantizedWeight, dequantize

_INT8_LARGEST = 127.0
_E4M3_LARGEST = 448.0


class ReferenceLinear(PlainLinear[torch.Tensor | QuantizedWeight]):
    """Computes in the dtype of x, whatever the weight's is."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if isinstance(weight, torch.Tensor):
            dense = weight.to(x.dtype)
        else:
            x, dense = round_activations(x, weight), dequantize(weight, x.dtype)
        y = x @ dense.T
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(self.weight, torch.Tensor):
            return self.weight[ids]
        return dequantize(self.weight.rows(ids))


def prepare(weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None) -> ReferenceLinear:
    check(weight, bias)
    return ReferenceLinear(weight, bias)


def round_activations(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """x [..., in] as a product with this weight sees it: unchanged, or rounded to int8 or e4m3.

    Rounding is decided in fp32: per token and group of inputs (in the order of the weight's codes; the last
    group may be partial) scale = absmax / 127 (448 for e4m3), code = x / scale to the nearest, ties to even.
    """
    if weight.activations is None:
        return x
    order = weight.in_order
    wide = x.float() if order is None else x.float()[..., order]
    group = min(weight.activation_group, weight.group)
    padded = torch.nn.functional.pad(wide, (0, -weight.in_features % group)).unflatten(-1, (-1, group))
    largest = _INT8_LARGEST if weight.activations == "int8" else _E4M3_LARGEST
    scale = padded.abs().amax(-1, keepdim=True) / largest
    codes = torch.where(scale == 0, 0.0, padded / scale).clamp(
        -largest, largest
    )  # a subnormal scale is coarse
    codes = codes.round() if weight.activations == "int8" else codes.to(torch.float8_e4m3fn).float()
    rounded = (codes * scale).flatten(-2)[..., : weight.in_features]
    if order is not None:
        rounded = torch.empty_like(rounded).index_copy_(-1, order, rounded)
    return rounded.to(x.dtype)
