"""What the layouts of quantised checkpoints share: small integers in words, zero points, orders of inputs."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import Codes, QuantizedWeight, pack4

_KINDS = {4: Codes.INT4, 8: Codes.INT8}
_WORD = 32  # bits


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] int32 to [rows, n * 32 / bits] uint8, the lowest bits of a word first. bits: 4 or 8."""
    if words.dtype is not torch.int32:
        raise InvalidArgument(f"packed values are {words.dtype}, not int32")
    values = words.contiguous().view(torch.uint8)  # of little-endian words: their bytes, lowest first
    return values if bits == 8 else torch.stack((values & 15, values >> 4), -1).flatten(1)


def per_word(bits: int) -> int:
    """Values in a word. InvalidArgument: other bits than 4 or 8."""
    if bits not in _KINDS:
        raise InvalidArgument(f"{bits} bits are not supported, 4 and 8 are")
    return _WORD // bits


def affine(
    codes: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None, bits: int, group: int
) -> QuantizedWeight:
    """value = scale * (code - zero), codes unsigned.

    codes: [out, in] uint8; scale, zeros: [out, groups], zeros in any integer dtype; None: the middle.
    """
    if zeros is not None and zeros.shape != scale.shape:
        raise InvalidArgument(f"zero points are {list(zeros.shape)}, scales {list(scale.shape)}")
    middle = 1 << (bits - 1)
    kind = _KINDS[bits]
    stored = pack4(codes) if bits == 4 else (codes ^ middle).view(torch.int8)  # the same as codes - 128
    offset = None
    if zeros is not None and bool((zeros != middle).any()):
        # An INT8 code is 128 less. Exact for 16-bit scales: 11 bits times 8 fit into fp32.
        offset = (middle * (bits == 8) - zeros.int()) * scale.float()
    return QuantizedWeight(
        kind=kind,
        codes=stored.contiguous(),
        scale=scale.contiguous(),
        in_features=codes.shape[1],
        group=group,
        offset=offset,
        zero_point=middle if offset is None and bits == 4 else 0,
    )


def input_order(g_idx: torch.Tensor, inputs: int, group: int) -> torch.Tensor | None:
    """The permutation that makes groups contiguous; None if they are. g_idx: [in], the group of each input.
    InvalidArgument: a group has another number of inputs than `group` (the last one may be smaller)."""
    if g_idx.shape != (inputs,):
        raise InvalidArgument(f"g_idx is {list(g_idx.shape)}, not [{inputs}]")
    if bool((g_idx < 0).any()):
        return None  # what a file holds that has room for an order and none in it
    wanted = torch.arange(inputs) // group
    if torch.equal(g_idx.long(), wanted):
        return None
    order = torch.argsort(g_idx, stable=True)
    if not torch.equal(g_idx[order].long(), wanted):
        raise InvalidArgument(f"its g_idx does not put {inputs} inputs into groups of {group}")
    return order
