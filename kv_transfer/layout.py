"""Where KV vectors lie in a pool, and which copies bring a span of tokens from one pool to another. Pure.

A pool is one array `[num_blocks, layers, 2, block_size, heads, head_dim]` (2: key, value): a block is
contiguous over all its layers, so the common case (equal layouts, whole blocks) is one copy per block, and
a layer's slice of a block is contiguous too. Layers and heads are half-open *global* ranges, so ranks that
hold a part of them (TP, PP) speak the same language.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One rank's pool. dtype: torch's name ("float32", "bfloat16", ...)."""

    block_size: int
    layer_start: int
    layer_end: int
    head_start: int
    head_end: int
    head_dim: int
    dtype: str
    num_blocks: int

    @property
    def layers(self) -> int:
        return self.layer_end - self.layer_start

    @property
    def heads(self) -> int:
        return self.head_end - self.head_start

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        return (self.num_blocks, self.layers, 2, self.block_size, self.heads, self.head_dim)
