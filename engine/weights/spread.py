"""Scales of any granularity as one per output and group of inputs."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import Codes, QuantizedWeight

Block = tuple[int, int]  # rows, inputs


def spread(
    scale: torch.Tensor, out: int, inputs: int, group: int | None = None, block: Block | None = None
) -> tuple[torch.Tensor, int]:
    """[out, groups], and the group's size. group: its size where scales have groups, None: they have none.

    scale: one of all; one per output; one per output and group; or one per block. InvalidArgument: none of
    these sizes.
    """
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
