"""Scales of any granularity as one per output and group of inputs."""

from __future__ import annotations

from typing import Any

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import Codes, QuantizedWeight

Block = tuple[int, int]  # rows, inputs


def whole(value: Any, key: str) -> int:
    """A config's size. InvalidArgument naming the key: no whole number above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{key} must be a whole number above 0, got {value!r}")
    return value


def block_of(structure: Any, key: str) -> Block:
    """From [rows, inputs], or "ROWSxINPUTS". InvalidArgument naming the key: neither."""
    parts = structure
    if isinstance(structure, str):
        parts = [int(part) if part.isdecimal() else part for part in structure.split("x")]
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise InvalidArgument(f"{key} must be rows and inputs, got {structure!r}")
    return whole(parts[0], key), whole(parts[1], key)


def spread(
    scale: torch.Tensor, out: int, inputs: int, group: int | None = None, block: Block | None = None
) -> tuple[torch.Tensor, int]:
    """[out, groups], and the group's size. group: its size where scales have groups, None: they have none.

    scale: one of all; one per output; one per output and group; or one per block. InvalidArgument: none of
    these sizes, or there are no inputs.
    """
    if inputs < 1:
        raise InvalidArgument(f"a weight of {out} outputs has no inputs")
    size = min(block[1] if block else group or inputs, inputs)
    groups = -(-inputs // size)
    if scale.numel() == 1 and groups == 1:
        scale = scale.reshape(1, 1).expand(out, 1)
    elif block and tuple(scale.shape) == (-(-out // block[0]), groups):
        scale = scale.repeat_interleave(block[0], 0)[:out]
    elif scale.dim() == 1:
        scale = scale.unsqueeze(1)
    if tuple(scale.shape) != (out, groups):
        wanted = f"{out} outputs and {groups} groups of {size}" + (f" in blocks of {block}" if block else "")
        raise InvalidArgument(f"scale is {list(scale.shape)}, which does not fit {wanted}")
    return scale.contiguous(), size


def fp8_weight(
    codes: torch.Tensor, scale: torch.Tensor, group: int | None = None, block: Block | None = None
) -> QuantizedWeight:
    """codes: [out, in] e4m3fn; the rest: see `spread`."""
    if codes.dtype is not torch.float8_e4m3fn:
        raise InvalidArgument(f"weight is {codes.dtype}, not float8_e4m3fn")
    out, inputs = codes.shape
    scale, size = spread(scale, out, inputs, group, block)
    return QuantizedWeight(Codes.FP8, codes.contiguous(), scale, codes.shape[1], size)
