"""GGUF's blocks of 32 values as quantised weights: codes in another order, scales and offsets as they are.

Formats: ggml's ggml-common.h. d, m: fp16. A block of Q4_0 and Q4_1 holds values 0..15 in its low nibbles and
16..31 in its high ones.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import torch

from baton.kernels.quantize import Codes, QuantizedWeight, pack4

_BLOCK = 32
_HALF = 2  # bytes of an fp16


def as_weight(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> QuantizedWeight | None:
    """data: [out, bytes of a row] uint8. None: `kind` is none of Q4_0, Q4_1, Q8_0."""
    known = _KINDS.get(kind)
    if known is None or data.ndim != 2:
        return None
    read, block_bytes = known
    blocks = torch.from_numpy(np.array(data)).view(data.shape[0], -1, block_bytes)
    return read(blocks)


def _q4_0(blocks: torch.Tensor) -> QuantizedWeight:
    """value = d * (code - 8)"""
    return _weight(Codes.INT4, _nibbles(blocks[..., _HALF:]), _half(blocks, 0), zero_point=8)


def _q4_1(blocks: torch.Tensor) -> QuantizedWeight:
    """value = d * code + m"""
    codes = _nibbles(blocks[..., 2 * _HALF :])
    return _weight(Codes.INT4, codes, _half(blocks, 0), offset=_half(blocks, _HALF))


def _q8_0(blocks: torch.Tensor) -> QuantizedWeight:
    """value = d * code"""
    codes = blocks[..., _HALF:].reshape(blocks.shape[0], -1).view(torch.int8)
    return _weight(Codes.INT8, codes, _half(blocks, 0))


_KINDS: dict[gguf.GGMLQuantizationType, tuple[Callable[[torch.Tensor], QuantizedWeight], int]] = {
    gguf.GGMLQuantizationType.Q4_0: (_q4_0, _HALF + _BLOCK // 2),
    gguf.GGMLQuantizationType.Q4_1: (_q4_1, 2 * _HALF + _BLOCK // 2),
    gguf.GGMLQuantizationType.Q8_0: (_q8_0, _HALF + _BLOCK),
}


def _weight(
    kind: Codes,
    codes: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None = None,
    zero_point: int = 0,
) -> QuantizedWeight:
    inputs = scale.shape[1] * _BLOCK
    return QuantizedWeight(kind, codes, scale, inputs, _BLOCK, offset=offset, zero_point=zero_point)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 at byte `at` of each block: [out, blocks]."""
    return blocks[..., at : at + _HALF].contiguous().view(torch.float16).squeeze(-1)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[out, blocks, 16] bytes to the package's order, [out, blocks * 16]."""
    codes = torch.cat((packed & 15, packed >> 4), -1)
    return pack4(codes.flatten(1))
