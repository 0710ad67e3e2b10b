"""Which of two equal products BLAS runs faster on a weight stored [out, in].

With few rows the time goes into reading the weight. Measured on an AVX-512 core that reads 25 GB/s, weights
of SmolLM2-135M: one row through F.linear (a gemv) reads 12 GB/s; weight @ x.T with two columns reads 20 (30
with two threads), so one row is doubled; the lead is lost at six rows with one thread, at some hundred with
two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_SKINNY_ROWS = 4
_SKINNY_ROWS_THREADED = 64


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows = x.shape[0]
    if rows == 0 or rows > (_SKINNY_ROWS if torch.get_num_threads() == 1 else _SKINNY_ROWS_THREADED):
        return F.linear(x, weight, bias)
    # x must be row-major here: BLAS takes another, six times slower, path for a column-major one.
    x = torch.cat((x, x)) if rows == 1 else x.contiguous()
    y = (weight @ x.t())[:, :rows].t()
    return y if bias is None else y.add_(bias)
