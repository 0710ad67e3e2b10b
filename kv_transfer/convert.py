"""KV vectors from one dtype to another, as they travel.

Equal dtypes keep their bits. Plain dtypes round to nearest, ties to even. Into a quantised dtype vectors are
quantised as the step that computed them would have done it, so a converted block holds what the target's own
prefill would have stored, up to the rounding of the source's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import SCALE_DTYPE, dequantize_kv, quantize_kv
from baton.kernels.blocks import KvVectors
from baton.kernels.blocks import native as native_blocks

# Arrays of vectors are numpy's, of integers: it has no bfloat16, it copies with one thread (torch may start
# its pool of them in ours) and it lets go of the GIL.
Items = np.ndarray[Any, np.dtype[Any]]
_AS_INTEGER = {4: torch.int32, 2: torch.int16, 1: torch.int8}
# Torch computes on fewer elements than this in the calling thread, and they stay in its cache.
_PIECE_ELEMENTS = 32_767


@dataclass(frozen=True, slots=True)
class Vectors:
    """The bits of `dtype` values [blocks, layers, 2, tokens, heads, head_dim], or of codes and their scales
    [blocks, layers, 2, tokens, heads]."""

    dtype: torch.dtype
    values: Items
    scales: Items | None = None

    @classmethod
    def of(cls, values: torch.Tensor, scales: torch.Tensor | None = None) -> Vectors:
        return cls(values.dtype, _bits(values), None if scales is None else _bits(scales))

    def __getitem__(self, where: tuple[slice, ...]) -> Vectors:
        """By the first five dimensions."""
        return Vectors(self.dtype, self.values[where], None if self.scales is None else self.scales[where])

    def tensors(self) -> KvVectors:
        values = torch.from_numpy(self.values).view(self.dtype)
        scales = None if self.scales is None else torch.from_numpy(self.scales).view(SCALE_DTYPE)
        return KvVectors(values, scales)

    def read(self) -> torch.Tensor:
        """What they stand for."""
        values, scales = self.tensors()
        return values if scales is None else dequantize_kv(values, scales)

    def write(self, vectors: torch.Tensor) -> None:
        into, into_scales = self.tensors()
        if into_scales is None:
            into.copy_(vectors)
            return
        codes, scales = quantize_kv(vectors, self.dtype)
        into.copy_(codes)
        into_scales.copy_(scales)


def _bits(tensor: torch.Tensor) -> Items:
    bits: Items = tensor.view(_AS_INTEGER[tensor.dtype.itemsize]).numpy()
    return bits


def assign(dst: Vectors, src: Vectors) -> None:
    """Overwrite `dst` with `src`, of the same shape."""
    if dst.dtype == src.dtype:
        dst.values[...] = src.values
        if dst.scales is not None:
            dst.scales[...] = src.scales
    elif dst.scales is None and src.scales is None:
        dst.write(src.read())
    elif native.available():
        native_blocks.convert(dst.tensors(), src.tensors())  # torch takes some twenty times as long
    else:
        for where in _pieces(src.values.shape):
            dst[where].write(src[where].read())


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Layers of one block at a time, as many as fit into a piece (one at least)."""
    blocks, layers = shape[:2]
    step = max(1, _PIECE_ELEMENTS // max(1, math.prod(shape[2:])))
    for block in range(blocks):
        for layer in range(0, layers, step):
            yield slice(block, block + 1), slice(layer, layer + step)
