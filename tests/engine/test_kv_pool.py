from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.engine.kv_pool import KvPool, KvShape

SHAPE = KvShape(num_blocks=5, layers=3, block_size=4, kv_heads=2, head_dim=8)


def test_sizes() -> None:
    assert SHAPE.dims == (5, 3, 2, 4, 2, 8)
    assert SHAPE.token_bytes == 3 * 2 * 2 * 8 * 4
    assert SHAPE.block_bytes == 4 * SHAPE.token_bytes
    assert SHAPE.total_bytes == KvPool(SHAPE).tensor.nbytes


def test_clear_touches_those_blocks_only() -> None:
    pool = KvPool(SHAPE)
    pool.tensor.fill_(torch.nan)
    pool.clear([2, 4])
    pool.clear([])
    assert [bool((block == 0).all()) for block in pool.tensor] == [False, False, True, False, True]


def test_a_large_pool_lies_in_huge_pages_of_zeros() -> None:
    shape = replace(SHAPE, num_blocks=(16 << 20) // SHAPE.block_bytes + 1)
    pool = KvPool(shape)
    assert pool.tensor.nbytes == shape.total_bytes
    assert not pool.tensor.any()
    assert pool.tensor.data_ptr() % 64 == 0
    at, flags = pool.tensor.data_ptr(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and all(part.isalnum() for part in first.split("-")):
            begin, end = (int(part, 16) for part in first.split("-"))
        elif first == "VmFlags:" and begin <= at < end:
            flags = rest
    assert "hg" in flags.split()  # asked for


def test_layers_are_views() -> None:
    pool = KvPool(SHAPE)
    pool.layer(1).codes[3, 1, 2] = 7.0
    assert pool.tensor[3, 1, 1, 2].eq(7).all()
    assert pool.tensor.sum() == 7 * 16


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_given_memory_is_used_in_place_and_kept_but_for_the_null_block(dtype: torch.dtype) -> None:
    memory = torch.ones(SHAPE.total_bytes + 64, dtype=torch.uint8).view(dtype)
    pool = KvPool(SHAPE, memory)
    assert pool.tensor.data_ptr() == memory.data_ptr()
    assert pool.tensor[0].eq(0).all()
    assert pool.tensor[1].view(torch.uint8).eq(1).all()


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 7680 bytes, not 7676"):
        KvPool(SHAPE, torch.zeros(1919))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_layer_of_a_block_is_codes_then_scales(dtype: torch.dtype) -> None:
    shape = replace(SHAPE, dtype=dtype)
    pool = KvPool(shape)
    assert pool.tensor.shape == (5, 3, 2 * 4 * 2 * (8 + 2))
    assert shape.total_bytes == pool.tensor.nbytes
    layer = pool.layer(1)
    assert layer.codes.shape == (5, 2, 4, 2, 8)
    assert layer.scales is not None
    assert layer.scales.shape == (5, 2, 4, 2)
    layer.codes[3] = 1.0
    layer.scales[3] = 2.0
    pool.clear([0, 4])
    assert pool.tensor[3, 0].eq(0).all()
    assert pool.tensor[3, 1, :128].eq(torch.ones(1, dtype=dtype).view(torch.uint8)).all()
    assert pool.tensor[3, 1, 128:].view(torch.bfloat16).eq(2.0).all()
    assert pool.tensor[2].eq(0).all()
    pool.clear([3])
    assert pool.tensor.eq(0).all()


def test_int8_holds_nearly_twice_the_tokens_of_bfloat16() -> None:
    bfloat16 = KvShape(1, 30, 16, 3, 64, torch.bfloat16)
    assert bfloat16.token_bytes / replace(bfloat16, dtype=torch.int8).token_bytes >= 1.9
