"""Conversion of KV between dtypes has the reference's bits."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from baton.kernels.attention.kv_layer import CODE_MAX, quantize_kv
from baton.kernels.blocks import KvVectors, reference, triton

# Not to bf16: the interpreter cuts where devices round.
DTYPES = [torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn]
SHAPE = (3, 2, 2, 5, 3)  # blocks, layers, parts, tokens, heads


def side(dtype: torch.dtype, head_dim: int) -> KvVectors:
    """Every second block of a pool."""
    values = torch.randn(6, *SHAPE[1:], head_dim, generator=torch.Generator().manual_seed(0))
    values[2, 0, 0, 0, 0] = 0.0
    values[4, 1, 1, 4, 2, 0] = torch.nan
    if dtype not in CODE_MAX:
        return KvVectors(values.to(dtype)[::2])
    codes, scales = quantize_kv(values, dtype)
    return KvVectors(codes[::2], scales[::2])


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("source", "target"), list(permutations(DTYPES, 2)))
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:All-NaN slice")
def test_equals_the_reference(source: torch.dtype, target: torch.dtype) -> None:
    given, got, want = side(source, 24), side(target, 24), side(target, 24)
    got.values.view(torch.uint8).fill_(7)
    reference.convert(want, given)
    triton.convert(got, given)
    if target in CODE_MAX:
        assert torch.equal(raw(got.values), raw(want.values))
        assert got.scales is not None
        torch.testing.assert_close(got.scales, want.scales, rtol=0, atol=0, equal_nan=True)
    else:
        torch.testing.assert_close(got.values, want.values, rtol=0, atol=0, equal_nan=True)
