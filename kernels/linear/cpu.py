"""Torch's own products on the CPU: what runs where the native kernels cannot.

Which of two equal products BLAS runs faster on a weight stored [out, in]: with few rows the time goes into
reading the weight. Measured on an AVX-512 core that reads 25 GB/s, weights of SmolLM2-135M: one row through
F.linear (a gemv) reads 12 GB/s; weight @ x.T with two columns reads 20 (30 with two threads), so one row is
doubled; the lead is lost at six rows with one thread, at some hundred with two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton.kernels.linear.checks import check
from baton.kernels.linear.plain import PlainLinear
from baton.kernels.linear.reference import round_activations
from baton.kernels.quantize import QuantizedWeight, dequantize

_SKINNY_ROWS = 4
_SKINNY_ROWS_THREADED = 64
_SLICE_BYTES = 4 << 20  # of fp32: what a quantised weight takes beside itself while it is multiplied


class DenseLinear(PlainLinear[torch.Tensor]):
    """Computes in the weight's dtype."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]).to(self.weight.dtype)
        y = linear(flat, self.weight, self.bias)
        return y.reshape(*x.shape[:-1], self.out_features).to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)


class QuantizedLinear(PlainLinear[QuantizedWeight]):
    """Reads the weight back piece by piece in each call: slow, but no whole copy exists. Computes in fp32."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = round_activations(x.reshape(-1, self.in_features).float(), self.weight)
        out = torch.empty(flat.shape[0], self.out_features)
        step = max(1, _SLICE_BYTES // (4 * self.in_features))
        for start in range(0, self.out_features, step):
            piece = slice(start, start + step)
            bias = None if self.bias is None else self.bias[piece]
            out[:, piece] = linear(flat, dequantize(self.weight.rows(piece)), bias)
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return dequantize(self.weight.rows(ids))


def prepare(
    weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
) -> DenseLinear | QuantizedLinear:
    check(weight, bias)
    if isinstance(weight, torch.Tensor):
        return DenseLinear(weight.contiguous(), None if bias is None else bias.to(weight.dtype))
    return QuantizedLinear(weight, None if bias is None else bias.float())


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = x.shape[0]
    if rows == 0 or rows > (_SKINNY_ROWS if torch.get_num_threads() == 1 else _SKINNY_ROWS_THREADED):
        return F.linear(x, weight, bias)
    # x must be row-major here: BLAS takes another, six times slower, path for a column-major one.
    x = torch.cat((x, x)) if rows == 1 else x.contiguous()
    y = (weight @ x.t())[:, :rows].t()
    return y if bias is None else y.add_(bias)
