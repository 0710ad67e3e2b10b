"""The memory behind a node's KV blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.kernels.attention.kv_layer import CODE_MAX, KvLayer, record_bytes, split_records
from baton.kernels.native import memory as pages

# Of what caches hold, huge pages make nothing faster.
_LARGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one pool holds. A block is contiguous over all its layers; of a quantised dtype (int8,
    float8_e4m3fn) each layer's part is codes, then their scales. Sizes count the scales."""

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
    def quantized(self) -> bool:
        return self.dtype in CODE_MAX

    @property
    def token_bytes(self) -> int:
        return self.layers * record_bytes(1, self.kv_heads, self.head_dim, self.dtype)

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


class KvPool:
    """Blocks of KV, of which block 0 is the null block.

    tensor: the memory, as transports take it: [num_blocks, layers, 2, block_size, kv_heads, head_dim]
    (2: key, value), or, quantised, [num_blocks, layers, record_bytes] uint8.
    codes, scales: views of it, [num_blocks, layers, 2, block_size, kv_heads(, head_dim)]; where nothing is
    quantised, codes is `tensor` and scales is None.

    memory: a flat tensor of any dtype with room for the pool (shared memory, say), used in place; None: the
    pool allocates its own, zeroed, in huge pages if it is large. Memory given is taken as it is: blocks are
    cleared before their first use.
    """

    def __init__(self, shape: KvShape, memory: torch.Tensor | None = None) -> None:
        self.shape = shape
        if memory is None:
            new = pages.empty if shape.total_bytes >= _LARGE_BYTES else torch.zeros
            self._bytes = new((shape.num_blocks, shape.block_bytes), dtype=torch.uint8)
        else:
            self._bytes = _view(memory, shape)
            self._bytes[0].zero_()
        self.scales: torch.Tensor | None = None
        if shape.quantized:
            self.tensor = self._bytes.view(shape.num_blocks, shape.layers, -1)
            vectors = (shape.block_size, shape.kv_heads, shape.head_dim)
            self.codes, self.scales = split_records(self.tensor, vectors, shape.dtype)
        else:
            self.tensor = self.codes = self._bytes.view(-1).view(shape.dtype).view(shape.dims)
        codes = self.codes.unbind(1)
        scales = [None] * shape.layers if self.scales is None else self.scales.unbind(1)
        self._layers = tuple(map(KvLayer, codes, scales))

    def layer(self, index: int) -> KvLayer:
        """Views of one layer."""
        return self._layers[index]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero these blocks in all layers."""
        if blocks:
            self._bytes.index_fill_(0, torch.tensor(blocks, dtype=torch.int64, device=self._bytes.device), 0)


def _view(memory: torch.Tensor, shape: KvShape) -> torch.Tensor:
    """[num_blocks, block_bytes] uint8."""
    if not memory.is_contiguous():
        raise ValueError("pool memory must be contiguous")
    if memory.nbytes < shape.total_bytes:
        raise ValueError(f"a pool of {shape.dims} needs {shape.total_bytes} bytes, not {memory.nbytes}")
    flat = memory.view(-1).view(torch.uint8)[: shape.total_bytes]
    return flat.view(shape.num_blocks, shape.block_bytes)
