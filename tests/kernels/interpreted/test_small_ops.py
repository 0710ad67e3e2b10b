"""Norms, gates, embeddings, rotation with the KV write behind it, and edits of logits, against fp64."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.attention import KvLayer
from baton.kernels.attention.kv_layer import CODE_MAX, quantize_kv
from baton.kernels.embedding import triton as embedding
from baton.kernels.logits import LogitEdits
from baton.kernels.logits import reference as reference_logits
from baton.kernels.logits import triton as logits
from baton.kernels.rms_norm import reference as reference_norm
from baton.kernels.rms_norm import triton as rms_norm
from baton.kernels.rope import QkNorm, Rotation, Slots, tables
from baton.kernels.rope import reference as reference_rope
from baton.kernels.rope import triton as rope
from baton.kernels.silu_mul import reference as reference_silu
from baton.kernels.silu_mul import triton as silu_mul

DTYPES = [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 4e-2)]
INF, NAN = torch.inf, torch.nan


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (2, 3, 24), (4, 331)])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x, weight = (noise(*shape) * 3).to(dtype), noise(shape[-1], seed=1).to(dtype)
    want = reference_norm.rms_norm(x.double(), weight.double(), 1e-5)
    got = rms_norm.rms_norm(x, weight, 1e-5)
    assert (got.dtype, got.shape) == (dtype, x.shape)
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # infinity times 0, which is meant
def test_rms_norm_of_spaced_rows_of_which_one_is_spoilt() -> None:
    x, weight = noise(5, 40)[:, :24], noise(24, seed=1)
    want = rms_norm.rms_norm(x.clone(), weight, 1e-5)
    x[1, 3], x[3, 0] = NAN, INF
    got = rms_norm.rms_norm(x, weight, 1e-5)
    assert torch.equal(got[[0, 2, 4]], want[[0, 2, 4]])
    assert got[1].isnan().all()


def test_adding_to_the_residual_stream_first() -> None:
    x, update, weight = noise(4, 96), noise(4, 96, seed=1), noise(96, seed=2)
    want_x = x.double() + update.double()
    want = reference_norm.rms_norm(want_x, weight.double(), 1e-5)
    got = rms_norm.add_rms_norm(x, update, weight, 1e-5)
    torch.testing.assert_close(x.double(), want_x, atol=1e-6, rtol=0)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_silu_mul(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = (noise(3, 700) * 20).to(dtype)[:, :662]
    gate_up[0, :2] = torch.tensor([-100.0, 100.0])
    want = reference_silu.silu_mul(gate_up.double())
    torch.testing.assert_close(silu_mul.silu_mul(gate_up).double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embedding(dtype: torch.dtype) -> None:
    table, ids = noise(9, 33).to(dtype), torch.tensor([8, 0, 3, 3])
    assert torch.equal(embedding.embedding(ids, table), table[ids].float())


def kv_layer(dtype: torch.dtype, kv_heads: int, head_dim: int) -> KvLayer:
    codes = torch.zeros(6, 3, 2, 4, kv_heads, head_dim).to(dtype)[:, 1]
    quantized = dtype in CODE_MAX
    return KvLayer(codes, torch.zeros(6, 2, 4, kv_heads, dtype=torch.bfloat16) if quantized else None)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("with_norm", [False, True])
def test_rotation_and_the_kv_write(with_norm: bool, kv_dtype: torch.dtype) -> None:
    tokens, heads, kv_heads, head_dim = 7, 15, 3, 24
    given = noise(tokens, heads + 2 * kv_heads, head_dim) * 2
    norm = QkNorm(noise(head_dim, seed=1), noise(head_dim, seed=2), 1e-6) if with_norm else None
    rotation = tables(noise(tokens, head_dim // 2, seed=3), 1.1, torch.float32)
    slots = Slots(torch.tensor([5, 1, 1, 2, 5, 3, 3]), torch.tensor([0, 3, 0, 1, 2, 0, 3]))
    want = given.double()
    exact = None if norm is None else QkNorm(norm.q.double(), norm.k.double(), norm.eps)
    reference_rope.rotate_and_store(
        want,
        Rotation(*(part.double() for part in rotation)),
        kv_layer(torch.float32, 3, head_dim),
        slots,
        exact,
    )
    got, layer = given.clone(), kv_layer(kv_dtype, kv_heads, head_dim)
    rope.rotate_and_store(got, rotation, layer, slots, norm)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    assert torch.equal(got[:, -kv_heads:], given[:, -kv_heads:])

    # What is stored is what the rule makes of the vectors as they came out.
    expected = kv_layer(kv_dtype, kv_heads, head_dim)
    reference_rope.store(expected, got[:, heads:].unflatten(1, (2, kv_heads)), slots)
    assert torch.equal(raw(layer.codes), raw(expected.codes))
    if expected.scales is not None:
        assert layer.scales is not None
        assert torch.equal(layer.scales, expected.scales)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_nan_stays_in_its_vector(kv_dtype: torch.dtype) -> None:
    given, layer = noise(2, 4, 8), kv_layer(kv_dtype, 1, 8)
    rotation, slots = (
        tables(noise(2, 4), 1.0, torch.float32),
        Slots(torch.tensor([1, 2]), torch.tensor([0, 0])),
    )
    want = given.clone()
    rope.rotate_and_store(want, rotation, kv_layer(kv_dtype, 1, 8), slots)
    given[0, 2, 5] = given[1, 3, 0] = given[1, 0, 1] = NAN
    rope.rotate_and_store(given, rotation, layer, slots)
    spoilt = given.isnan().any(-1)
    assert spoilt.nonzero().tolist() == [[0, 2], [1, 0], [1, 3]]
    assert torch.equal(given[~spoilt], want[~spoilt])
    assert layer.scales is not None
    assert layer.scales.isnan().nonzero().tolist() == [[1, 0, 0, 0], [2, 1, 0, 0]]
    codes, scales = quantize_kv(want[0, 3], kv_dtype)
    assert torch.equal(raw(layer.codes[1, 1, 0, 0]), raw(codes))
    assert torch.equal(layer.scales[1, 1, 0, 0], scales)


def test_edits_of_logits_have_the_references_bits() -> None:
    table = noise(3, 700) * 10
    table[0, :6] = torch.tensor([INF, -INF, NAN, 3e38, -3e38, NAN])
    rows = torch.arange(3).repeat_interleave(400)
    ids = torch.arange(400).repeat(3)
    repetition = noise(1200, seed=1).double().exp()
    add = noise(1200, seed=2).double() * 5
    add[5::7] = -INF
    edits = LogitEdits(rows, ids, repetition, add)
    want, got = table.clone(), table[:, :].clone()
    reference_logits.apply(want, edits)
    logits.apply(got, edits)
    torch.testing.assert_close(got, want, atol=0, rtol=0, equal_nan=True)
    assert got[0, 5] == -INF
    assert got[0, 2].isnan()
