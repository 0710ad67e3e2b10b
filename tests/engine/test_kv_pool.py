from __future__ import annotations

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


def test_layers_are_views() -> None:
    pool = KvPool(SHAPE)
    pool.layer(1)[3, 1, 2] = 7.0
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
    with pytest.raises(ValueError, match="needs 1920 elements, the memory has 1919"):
        KvPool(SHAPE, torch.zeros(1919))
