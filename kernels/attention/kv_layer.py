"""One layer of a paged KV pool, and how keys and values are quantised in it.

A quantised KV vector (one token, one head, key or value) is head_dim codes and one bfloat16 scale. The rule
is exact, so that every backend, and a transfer that converts, comes to the same bits:

    absmax = min(max |x|, 2**127)            scale = absmax / largest code, rounded UP to bfloat16
    code = x / scale, rounded to the nearest code, ties to even, and clamped

with true float32 divisions. Scales below 2**-126 become 0 and their codes 0: devices disagree about denormal
numbers. Above 2**127 a rounded scale could read back as infinity. A vector with a NaN or an infinity in it
gets the scale NaN and codes 0, and reads back as NaN: it spoils its own request only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# The largest code of each quantised dtype.
CODE_MAX = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SCALE_DTYPE = torch.bfloat16
_LEAST_SCALE = 2.0**-126
_LARGEST = 2.0**127


class KvLayer(NamedTuple):
    """Views of one layer of a pool, any strides but a contiguous head_dim.

    codes: [blocks, 2, block_size, kv_heads, head_dim] (2: key, value), the vectors themselves where scales is
    None. scales: [blocks, 2, block_size, kv_heads] bfloat16; a vector is its codes times its scale.
    """

    codes: torch.Tensor
    scales: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.codes.shape[2]

    @property
    def kv_heads(self) -> int:
        return self.codes.shape[3]

    @property
    def head_dim(self) -> int:
        return self.codes.shape[4]


def check_scales(codes: torch.Tensor, scales: torch.Tensor | None) -> None:
    """ValueError: quantised codes without scales, others with them, or scales of another type. Compiled code
    takes both as raw memory, so it asks first."""
    if (scales is not None) != (codes.dtype in CODE_MAX):
        raise ValueError(f"KV of {codes.dtype} {'without' if scales is None else 'with'} scales")
    if scales is not None and scales.dtype != SCALE_DTYPE:
        raise ValueError(f"scales of {scales.dtype} instead of {SCALE_DTYPE}")


def quantize_kv(vectors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., head_dim] floats to codes of `dtype` (a key of CODE_MAX), same shape, and scales [...]."""
    exact = vectors.float()
    largest = CODE_MAX[dtype]
    scales = _round_up(exact.abs().amax(-1), largest)
    divided = exact / scales.unsqueeze(-1)
    divided = torch.where((scales > 0).unsqueeze(-1), divided, 0.0)
    if dtype == torch.int8:
        divided = divided.round()
    return divided.clamp(-largest, largest).to(dtype), scales.to(SCALE_DTYPE)


def dequantize_kv(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """codes [..., head_dim] times scales [...], multiplied in float32 (float64 for that dtype)."""
    work = torch.float64 if dtype == torch.float64 else torch.float32
    return (codes.to(work) * scales.to(work).unsqueeze(-1)).to(dtype)


def _round_up(absmax: torch.Tensor, largest: float) -> torch.Tensor:
    """absmax / largest as float32 numbers that bfloat16 holds, none less than the quotient."""
    # By a tensor: a division by a number becomes a multiplication on some devices, which rounds differently.
    quotient = absmax.clamp(max=_LARGEST) / torch.full_like(absmax, largest)
    bits = quotient.view(torch.int32)
    up = ((bits + 0xFFFF) & -0x10000).view(torch.float32)
    up = torch.where(quotient < _LEAST_SCALE, 0.0, up)
    return torch.where(absmax.isfinite(), up, torch.nan)


def record_bytes(block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one layer of one block: codes, then (where dtype is quantised) scales."""
    vectors = 2 * block_size * kv_heads
    scale_bytes = SCALE_DTYPE.itemsize if dtype in CODE_MAX else 0
    return vectors * (head_dim * dtype.itemsize + scale_bytes)


def split_records(
    records: torch.Tensor, vectors: tuple[int, int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of quantised records [blocks, layers, record_bytes] uint8, contiguous in the last dimension.

    vectors: (block_size, kv_heads, head_dim). Returns codes [blocks, layers, 2, *vectors] of `dtype` and
    scales [blocks, layers, 2, block_size, kv_heads].
    """
    block_size, kv_heads, head_dim = vectors
    codes_bytes = 2 * block_size * kv_heads * head_dim
    codes = records[..., :codes_bytes].view(dtype).unflatten(-1, (2, *vectors))
    scales = records[..., codes_bytes:].view(SCALE_DTYPE).unflatten(-1, (2, block_size, kv_heads))
    return codes, scales
