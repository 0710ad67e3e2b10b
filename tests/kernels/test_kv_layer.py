"""How KV vectors are quantised: close, never overflowing, and each vector's trouble its own."""

from __future__ import annotations

import pytest
import torch

from baton.kernels import native
from baton.kernels.attention import AttentionParams, RowSpan, cpu, make_plan, reference, write_kv
from baton.kernels.attention.kv_layer import (
    CODE_MAX,
    KvLayer,
    dequantize_kv,
    quantize_kv,
    record_bytes,
    split_records,
)
from baton.kernels.rope import Rotation, Slots
from baton.kernels.rope import native as rope_native
from baton.kernels.rope import reference as rope_reference

DTYPES = [torch.int8, torch.float8_e4m3fn]
HUGE = torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 300.0, 1e36])
def test_values_come_back_within_the_format_s_error(dtype: torch.dtype, size: float) -> None:
    vectors = noise(50, 3, 24) * size
    codes, scales = quantize_kv(vectors, dtype)
    error = (dequantize_kv(codes, scales) - vectors).abs()
    absmax = vectors.abs().amax(-1, keepdim=True)
    # bfloat16 scales are up to 2**-7 too large. e4m3 has 3 bits of mantissa; its denormals are 2**-9 apart.
    step = absmax / 127 * (1 + 2**-7)
    bound = step / 2 if dtype == torch.int8 else torch.maximum(vectors.abs() * 2**-4, absmax / 448 * 2**-9)
    assert bool((error <= bound * 1.001).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_are_rounded_up(dtype: torch.dtype) -> None:
    vectors = noise(400, 8)
    codes, scales = quantize_kv(vectors, dtype)
    exact = vectors.abs().amax(-1).double() / CODE_MAX[dtype]
    assert scales.dtype == torch.bfloat16
    assert bool((scales.double() >= exact * (1 - 2**-23)).all())
    assert bool((scales.double() <= exact * (1 + 2**-7)).all())
    assert float(codes.float().abs().max()) <= CODE_MAX[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_tiny_and_huge_vectors(dtype: torch.dtype) -> None:
    vectors = torch.tensor([[0.0, -0.0], [1e-45, 0.0], [1e-38, -1e-38], [3e38, -1e38], [HUGE, -HUGE]])
    codes, scales = quantize_kv(vectors, dtype)
    back = dequantize_kv(codes, scales)
    assert scales[:3].eq(0).all()
    assert codes[:3].view(torch.uint8).eq(0).all()
    assert back.isfinite().all()
    torch.testing.assert_close(
        back[3:].clamp(-(2.0**127), 2.0**127), vectors[3:].clamp(-(2.0**127), 2.0**127), rtol=0.07, atol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_spoilt_vector_reads_as_nan_and_spoils_no_other(dtype: torch.dtype, bad: float) -> None:
    vectors = noise(4, 2, 8)
    want_codes, want_scales = quantize_kv(vectors, dtype)
    vectors[1, 1, 3] = bad
    vectors[3, 0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    codes, scales = quantize_kv(vectors, dtype)
    back = dequantize_kv(codes, scales)
    assert back.isnan().all(-1).nonzero().tolist() == [[1, 1], [3, 0]]
    assert codes[1, 1].view(torch.uint8).eq(0).all()
    well = scales.isfinite()
    assert torch.equal(codes[well].view(torch.uint8), want_codes[well].view(torch.uint8))
    assert torch.equal(scales[well], want_scales[well])


@pytest.mark.skipif(not native.available(), reason="no compiled kernels here")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_comes_to_the_same_bits(dtype: torch.dtype) -> None:
    """Over all magnitudes, and with every kind of odd vector."""
    tokens, block_size, head_dim = 64, 4, 24
    qkv = noise(tokens, 5, head_dim) * torch.logspace(-38, 37, tokens)[:, None, None]
    qkv[3, 4, 2], qkv[4, 4, 5], qkv[5, 4], qkv[6, 4], qkv[7, 4, 0] = torch.nan, torch.inf, 0.0, -0.0, HUGE
    slots = Slots(1 + torch.arange(tokens) // block_size, torch.arange(tokens) % block_size)
    turn = Rotation(torch.ones(tokens, 1, head_dim), torch.zeros(tokens, 1, head_dim))
    stored = []
    for path in (rope_reference, rope_native):
        records = torch.zeros(17, 1, record_bytes(block_size, 1, head_dim, dtype), dtype=torch.uint8)
        codes, scales = split_records(records, (block_size, 1, head_dim), dtype)
        path.rotate_and_store(qkv.clone(), turn, KvLayer(codes[:, 0], scales[:, 0]), slots)
        stored.append((codes.contiguous().view(torch.uint8), scales.float().nan_to_num(-1.0)))
    assert torch.equal(stored[0][0], stored[1][0])
    assert torch.equal(stored[0][1], stored[1][1])
    assert int((stored[0][1] == -1.0).sum()) == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 7])
def test_written_kv_reads_as_its_dequantised_self(dtype: torch.dtype, length: int) -> None:
    """Attention over a quantised pool is attention over what its codes and scales say."""
    block_size, kv_heads, head_dim = 4, 2, 16
    records = torch.zeros(6, 1, record_bytes(block_size, kv_heads, head_dim, dtype), dtype=torch.uint8)
    codes, scales = split_records(records, (block_size, kv_heads, head_dim), dtype)
    layer = KvLayer(codes[:, 0], scales[:, 0])
    table = [4, 2, 5]
    write_kv(
        layer, noise(5, 2, kv_heads, head_dim, seed=1) * 3, make_plan([RowSpan(0, 5, table)], block_size)
    )
    plan = make_plan([RowSpan(5, length, table)], block_size)
    write_kv(layer, noise(length, 2, kv_heads, head_dim, seed=2), plan)
    q, params = noise(length, 6, head_dim, seed=3), AttentionParams(head_dim**-0.5)
    plain = KvLayer(dequantize_kv(layer.codes, layer.scales, torch.float64))
    want = reference.attention(q.double(), plain, plan, params)
    for path in (cpu, reference):
        torch.testing.assert_close(path.attention(q, layer, plan, params).double(), want, atol=1e-5, rtol=0)
