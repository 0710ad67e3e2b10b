"""The small native operations against their references, on odd shapes; and their promises about bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.embedding import native as embedding
from baton.kernels.native.program import Program
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.rms_norm import reference as rms_norm_reference
from baton.kernels.rope import QkNorm, Slots, tables
from baton.kernels.rope import native as rope
from baton.kernels.rope import reference as rope_reference
from baton.kernels.silu_mul import native as silu_mul
from baton.kernels.silu_mul import reference as silu_mul_reference
from tests.kernels.isas import LESSER, digests_by
from tests.kernels.small_cases import KV_DTYPES, as_bits, digests, kv_layer, noise

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")
ROWS, WIDTHS = st.integers(0, 40), st.sampled_from([1, 2, 15, 16, 17, 24, 40, 576, 9000])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.skipif(not LESSER, reason="this machine has one instruction set only")
def test_both_instruction_sets_give_the_same_bits() -> None:
    """AMX has products of integers alone."""
    assert digests_by("avx2", "small_cases") == digests()


@settings(max_examples=30)
@given(ROWS, WIDTHS, st.integers(0, 99))
def test_norm_and_gate(rows: int, width: int, seed: int) -> None:
    x, update, weight = noise(rows, width, seed=seed) * 5, noise(rows, width, seed=seed + 1), noise(width)
    want = rms_norm_reference.add_rms_norm(x.double(), update.double(), weight.double(), 1e-5)
    stream = x.clone()
    got = rms_norm.add_rms_norm(stream, update, weight, 1e-5)
    assert torch.equal(stream, x + update)
    assert torch.equal(rms_norm.rms_norm(stream, weight, 1e-5), got)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=2e-6)
    both = torch.cat((x, stream), 1)
    gated = silu_mul.silu_mul(both)
    torch.testing.assert_close(
        gated.double(), silu_mul_reference.silu_mul(both.double()), atol=1e-6, rtol=2e-6
    )
    for row in range(min(rows, 3)):  # alone as in company
        assert torch.equal(silu_mul.silu_mul(both[row : row + 1])[0], gated[row])
        assert torch.equal(rms_norm.rms_norm(stream[row : row + 1], weight, 1e-5)[0], got[row])


@pytest.mark.parametrize("x", [-3e38, -1e4, -104.0, -88.5, -87.0, 0.0, 87.0, 3e38])
def test_the_gate_far_out(x: float) -> None:
    both = torch.tensor([[x, 1.0]])
    want = silu_mul_reference.silu_mul(both.double())
    torch.testing.assert_close(silu_mul.silu_mul(both).double(), want, atol=1e-30, rtol=1e-6)


def test_strided_rows_and_rows_beyond_the_count_are_left_alone() -> None:
    rows = native.Counter(3)
    whole, weight = torch.full((6, 50), torch.nan), noise(20)
    whole[:3] = noise(3, 50)
    out, gated = torch.full((6, 24), 7.0), torch.full((6, 10), 7.0)
    program = Program(
        [
            rms_norm.call(whole[:, 5:25], weight, 1e-5, out[:, 2:22], rows),
            silu_mul.call(whole[:, 30:], gated, rows),
        ]
    )
    program()
    torch.testing.assert_close(
        out[:3, 2:22], rms_norm_reference.rms_norm(whole[:3, 5:25], weight, 1e-5), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(gated[:3], silu_mul_reference.silu_mul(whole[:3, 30:]))
    assert out[3:].eq(7).all()
    assert out[:, :2].eq(7).all()
    assert gated[3:].eq(7).all()
    rows.value = 0
    program()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 33, 64])
def test_embedding_is_a_lookup(dtype: torch.dtype, width: int) -> None:
    table = noise(11, width).to(dtype)
    ids = torch.tensor([10, 0, 3, 3, 7] * 9)
    assert torch.equal(embedding.embedding(ids, table), table[ids].float())
    assert embedding.embedding(ids[:0], table).shape == (0, width)


def test_ids_outside_the_table_read_nothing() -> None:
    whole = noise(13, 5)
    table, out, rows = whole[1:12], torch.empty(4, 5), native.Counter(4)
    Program([embedding.call(torch.tensor([10, -1, 11, 2**62]), table, out, rows)])()
    assert torch.equal(out[0], table[10])
    assert out[1:].isnan().all()
    for bad in (-1, 11):
        with pytest.raises(IndexError, match="11 rows"):
            embedding.embedding(torch.tensor([0, bad]), table)
    for ids, into in (
        (torch.zeros(2, dtype=torch.int32), out),
        (torch.zeros(2, dtype=torch.int64), out.double()),
    ):
        with pytest.raises(ValueError, match=r"ids|results"):
            embedding.call(ids, table, into, rows)


@settings(max_examples=40)
@given(
    st.sampled_from(KV_DTYPES),
    st.integers(0, 20),
    st.sampled_from([(1, 1, 2), (6, 2, 24), (9, 3, 64), (4, 4, 80), (2, 1, 128)]),
    st.sampled_from([1, 3, 16]),
    st.booleans(),
)
def test_rotate_and_store(
    dtype: torch.dtype, tokens: int, heads_kv_dim: tuple[int, int, int], block_size: int, normed: bool
) -> None:
    heads, kv_heads, dim = heads_kv_dim
    qkv = noise(tokens, heads + 2 * kv_heads, dim, seed=tokens) * 10 ** float(tokens % 5 - 2)
    spoil(qkv)
    rotation = tables(noise(tokens, dim // 2, seed=1), 1.1, torch.float32)
    norm = QkNorm(noise(dim, seed=2), noise(dim, seed=3), 1e-6) if normed else None
    blocks = -(-tokens // block_size) + 2
    order = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(4))[:tokens]
    slots = Slots(order // block_size, order % block_size)
    layer, want = (kv_layer(dtype, blocks, (block_size, kv_heads, dim)) for _ in range(2))

    reference = qkv.clone()
    rope_reference.rotate_and_store(
        reference, rotation, kv_layer(dtype, blocks, (block_size, kv_heads, dim)), slots, norm
    )
    rope.rotate_and_store(qkv, rotation, layer, slots, norm)
    torch.testing.assert_close(qkv, reference, atol=1e-4, rtol=1e-4, equal_nan=True)
    assert torch.equal(as_bits(qkv[:, heads + kv_heads :]), as_bits(reference[:, heads + kv_heads :]))

    # Of the same vectors the pool holds the same bits, but for which NaN it is.
    rope_reference.store(want, qkv[:, heads:].unflatten(1, (2, kv_heads)), slots)
    for got_part, want_part in zip(layer, want, strict=True):
        if got_part is None or want_part is None:
            assert got_part is want_part
            continue
        if got_part.is_floating_point() and got_part.itemsize > 1:
            assert torch.equal(got_part.isnan(), want_part.isnan())
            got_part, want_part = got_part.nan_to_num(), want_part.nan_to_num()
        assert torch.equal(as_bits(got_part), as_bits(want_part))


def spoil(qkv: torch.Tensor) -> None:
    """Vectors that are hard to store."""
    specials = (torch.nan, torch.inf, 0.0, 1e-45, 3.4e38)
    for token, value in zip(range(len(qkv)), specials, strict=False):
        qkv[token, -1, 0] = value
        if value == 0.0:
            qkv[token, -1] = 0.0
    if len(qkv) > len(specials):
        qkv[len(specials)] *= 1e-37
        qkv[len(specials), 0, 0] = torch.nan


def test_e4m3_rounds_every_way() -> None:
    """All halves between neighbouring codes, and what is just beside them, through a pool."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    values = torch.cat((codes, middles, middles.nextafter(torch.tensor(1e9)), middles.nextafter(-codes[1:])))
    vectors = torch.stack((values, -values, torch.full_like(values, 448.0), torch.zeros_like(values)), -1)
    tokens = len(vectors)
    layer, want = (kv_layer(torch.float8_e4m3fn, 1, (tokens, 1, 4)) for _ in range(2))
    qkv = vectors[:, None].repeat(1, 3, 1)
    slots = Slots(torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens))
    rope.rotate_and_store(qkv, tables(torch.zeros(tokens, 2), 1.0, torch.float32), layer, slots)
    rope_reference.store(want, qkv[:, 1:].unflatten(1, (2, 1)), slots)
    assert torch.equal(as_bits(layer.codes), as_bits(want.codes))
