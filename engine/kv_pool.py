"""The memory behind a node's KV blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one pool holds. Sizes follow: a block is contiguous over all its layers."""

    num_blocks: int
    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        return (self.num_blocks, self.layers, 2, self.block_size, self.kv_heads, self.head_dim)

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


class KvPool:
    """[num_blocks, layers, 2, block_size, kv_heads, head_dim]; 2: key, value. Block 0 is the null block.

    memory: a flat tensor of any dtype with room for the pool (shared memory, say), used in place; None: the
    pool allocates its own, zeroed. Memory given is taken as it is: blocks are cleared before their first use.
    """

    def __init__(self, shape: KvShape, memory: torch.Tensor | None = None) -> None:
        self.shape = shape
        if memory is None:
            self.tensor = torch.zeros(shape.dims, dtype=shape.dtype)
        else:
            self.tensor = _view(memory, shape)
            self.tensor[0].zero_()
        self._layers = tuple(self.tensor.unbind(1))

    def layer(self, index: int) -> torch.Tensor:
        """[num_blocks, 2, block_size, kv_heads, head_dim], a view."""
        return self._layers[index]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero these blocks in all layers."""
        if blocks:
            self.tensor.index_fill_(0, torch.tensor(blocks, dtype=torch.int64), 0)


def _view(memory: torch.Tensor, shape: KvShape) -> torch.Tensor:
    if not memory.is_contiguous():
        raise ValueError("pool memory must be contiguous")
    if memory.dtype != shape.dtype:
        memory = memory.view(-1).view(torch.uint8).view(shape.dtype)
    needed = math.prod(shape.dims)
    if memory.numel() < needed:
        raise ValueError(f"a pool of {shape.dims} needs {needed} elements, the memory has {memory.numel()}")
    return memory.view(-1)[:needed].view(shape.dims)
