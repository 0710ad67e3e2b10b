"""Converted vectors hold the bits of the readable rule, whatever the strides."""

from __future__ import annotations

import itertools

import pytest
import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import CODE_MAX, record_bytes, split_records
from baton.kernels.blocks import KvVectors, reference
from baton.kernels.blocks import native as native_blocks
from tests.kernels.small_cases import KV_DTYPES, as_bits, noise

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")


def pool(dtype: torch.dtype, head_dim: int) -> KvVectors:
    """[3, 4, 2, 5, 3, head_dim], zeroed."""
    if dtype not in CODE_MAX:
        return KvVectors(torch.zeros(3, 4, 2, 5, 3, head_dim, dtype=dtype))
    records = torch.zeros(3, 4, record_bytes(5, 3, head_dim, dtype), dtype=torch.uint8)
    return KvVectors(*split_records(records, (5, 3, head_dim), dtype))


def part(whole: KvVectors) -> KvVectors:
    """Some blocks, layers, tokens and heads of a pool."""
    where = (slice(1, 3), slice(1, 4), slice(None), slice(2, 5), slice(1, 3))
    return KvVectors(whole.values[where], None if whole.scales is None else whole.scales[where])


@pytest.mark.parametrize("head_dim", [1, 24, 64])
@pytest.mark.parametrize(("source", "to"), [*itertools.permutations(KV_DTYPES, 2)])
def test_convert(source: torch.dtype, to: torch.dtype, head_dim: int) -> None:
    torch.set_num_threads(1)
    vectors = noise(3, 4, 2, 5, 3, head_dim) * 10 ** noise(3, 4, 2, 5, 3, 1, seed=1)
    vectors[1, 1, 0, 2, 1] = 0.0
    vectors[1, 1, 0, 3, 1, 0] = torch.nan
    vectors[2, 2, 1, 4, 2] = 1e30
    given, want, got = pool(source, head_dim), pool(to, head_dim), pool(to, head_dim)
    reference.convert(given, KvVectors(vectors))
    reference.convert(part(want), part(given))
    native_blocks.convert(part(got), part(given))
    for a, b in zip(got, want, strict=True):
        if a is None or b is None:
            assert a is b
        elif a.itemsize == 1:
            assert torch.equal(as_bits(a), as_bits(b))
        else:
            assert torch.equal(a.nan_to_num(1234.0), b.nan_to_num(1234.0))


def test_nan_codes_read_as_nan() -> None:
    given, got = pool(torch.float8_e4m3fn, 16), pool(torch.float32, 16)
    given.values.view(torch.uint8)[..., 3] = 0x7F
    given.values.view(torch.uint8)[..., 4] = 0xFF
    given.scales.fill_(2.0)
    native_blocks.convert(got, given)
    assert got.values.isnan().nonzero()[:, -1].unique().tolist() == [3, 4]


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot convert"):
        native_blocks.convert(pool(torch.float32, 16), pool(torch.int8, 24))
    flipped = pool(torch.float32, 16).values.transpose(-1, -2)
    with pytest.raises(ValueError, match="cannot convert"):
        native_blocks.convert(KvVectors(flipped), KvVectors(flipped))


def test_codes_and_scales_go_together() -> None:
    """What is compiled would write words where bytes are."""
    plain, coded = pool(torch.float32, 16), pool(torch.int8, 16)
    for wrong in (KvVectors(coded.values), KvVectors(plain.values, coded.scales)):
        with pytest.raises(ValueError, match=r"KV of torch.\w+ with"):
            native_blocks.convert(plain, wrong)
    with pytest.raises(ValueError, match=r"scales of torch\.float32"):
        native_blocks.convert(plain, KvVectors(coded.values, coded.scales.float()))
