"""The attention kernel against fp64, in pools that are NaN wherever nothing was written."""

from __future__ import annotations

import mmap
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.attention import AttentionParams, KvLayer, RowSpan, make_plan, triton
from tests.kernels.interpreted.scene import Scene

ROWS = [(0, 1), (0, 17), (39, 1), (12, 5), (3, 0)]  # (start, length)
PARAMS = AttentionParams(0.25)


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"),
    [
        ((3, 1), 8, 1),
        ((9, 1), 16, 3),
        ((9, 3), 24, 16),
        ((12, 4), 40, 1),
        ((24, 1), 80, 16),
        ((7, 7), 96, 3),
        ((40, 1), 16, 4),  # more query heads than a tile has rows
        ((2, 1), 256, 5),
    ],
)
def test_odd_heads_and_sizes(heads: tuple[int, int], head_dim: int, block_size: int) -> None:
    Scene([(0, 1), (0, 17), (39, 1), (0, 0)], heads, head_dim, block_size).check()


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [1, 8, 17])
def test_windows_and_soft_caps(window: int, softcap: float | None) -> None:
    rows = [*ROWS, (0, 7), (0, 8), (0, 9), (0, 16), (30, 9), (7, 1), (8, 1)]
    Scene(rows, (3, 1)).check(window, softcap)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # where the cap is reached, which is meant
def test_a_soft_cap_alone_and_scores_far_beyond_it() -> None:
    scene = Scene(ROWS)
    scene.check(None, 5.0)
    scene.q *= 100.0
    scene.check(None, 5.0)


@pytest.mark.parametrize(
    ("query", "kv", "atol"),
    [
        (torch.float32, torch.float16, 1e-5),
        (torch.float16, torch.float16, 3e-3),
        (torch.bfloat16, torch.bfloat16, 2e-2),
        (torch.bfloat16, torch.float32, 2e-2),
    ],
)
def test_dtypes(query: torch.dtype, kv: torch.dtype, atol: float) -> None:
    scene = Scene(ROWS, kv_dtype=kv)
    scene.q = scene.q.to(query)
    scene.check(atol=atol)


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=2),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (5, 1)]),
    head_dim=st.integers(1, 40),
    block_size=st.integers(1, 20),
    window=st.none() | st.integers(1, 60),
    softcap=st.none() | st.just(3.0),
)
@settings(max_examples=12)
def test_any_shape(
    rows: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
) -> None:
    Scene(rows, heads, head_dim, block_size).check(window, softcap)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_what_unwritten_slots_hold_changes_no_bit(kv_dtype: torch.dtype) -> None:
    scene = Scene(ROWS, kv_dtype=kv_dtype)
    codes, scales = scene.layer
    poisoned = (codes if scales is None else scales).isnan()
    assert poisoned.any()
    want = scene.check(8)
    for stale in (1e30, -3.0):
        (codes if scales is None else scales)[poisoned] = stale
        assert all(map(torch.equal, scene.check(8), want))


def test_what_the_window_has_left_behind_may_be_gone() -> None:
    scene = Scene([(63, 1), (40, 20)])
    want = scene.check(8)
    for span, first in zip(scene.spans, (56, 33), strict=True):
        scene.layer.codes[span.block_table[: first // 4]] = torch.nan
    params = AttentionParams(scene.q.shape[-1] ** -0.5, 8)
    assert torch.equal(triton.attention(scene.q, scene.layer, scene.plan, params), want[0])


def test_queries_may_have_any_strides_but_the_last() -> None:
    scene = Scene(ROWS)
    want = scene.check()
    wide = scene.randn(len(scene.q), 8, 40)
    wide[:, 1:7, 3:19] = scene.q
    scene.q = wide[:, 1:7, 3:19]
    assert torch.equal(scene.check()[0], want[0])


def test_no_rows() -> None:
    plan = make_plan([], 4)
    layer = KvLayer(torch.zeros(2, 2, 4, 2, 16))
    triton.write_kv(layer, torch.zeros(0, 2, 2, 16), plan)
    out, lse = triton.attention_lse(torch.zeros(0, 6, 16), layer, plan, PARAMS)
    assert out.shape == (0, 6, 16)
    assert lse.shape == (0, 6)


def test_what_cannot_be_is_refused() -> None:
    plan = make_plan([RowSpan(0, 1, [1])], 4)
    with pytest.raises(ValueError, match="5 query heads do not share 2 KV heads"):
        triton.attention(torch.zeros(1, 5, 16), KvLayer(torch.zeros(2, 2, 4, 2, 16)), plan, PARAMS)
    with pytest.raises(ValueError, match="head_dim is 300"):
        triton.attention(torch.zeros(1, 2, 300), KvLayer(torch.zeros(2, 2, 4, 2, 300)), plan, PARAMS)


def test_addresses_beyond_32_bits() -> None:
    """A sparse pool of more than 2**32 elements, two blocks of it in use."""
    blocks, block_size, kv_heads, head_dim = 2_200_000, 16, 1, 64
    per_block = 2 * block_size * kv_heads * head_dim
    assert blocks * per_block > 2**32
    kv = torch.randn(block_size + 1, 2, kv_heads, head_dim)
    q = torch.randn(block_size + 1, kv_heads, head_dim)
    small = KvLayer(torch.zeros(3, 2, block_size, kv_heads, head_dim))
    far, near = blocks - 1, 2**31 // per_block
    results = []
    with tempfile.TemporaryFile() as file:
        file.truncate(blocks * per_block * 4)
        with mmap.mmap(file.fileno(), blocks * per_block * 4) as memory:
            pool = torch.frombuffer(memory, dtype=torch.float32).view(blocks, 2, block_size, kv_heads, -1)
            for layer, table in ((KvLayer(pool), [far, near]), (small, [1, 2])):
                plan = make_plan([RowSpan(0, block_size + 1, table)], block_size)
                triton.write_kv(layer, kv, plan)
                results.append(triton.attention(q, layer, plan, PARAMS))
            assert torch.equal(pool[far].transpose(0, 1), kv[:block_size])
            assert torch.equal(pool[near, :, 0], kv[block_size])
            assert torch.equal(*results)
            del pool, layer
