"""Several weights over the same inputs as one, row below row: q, k, v, or gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize.weight import QuantizedWeight


def concat_obstacle(parts: Sequence[QuantizedWeight]) -> str | None:
    """What keeps `concat` from joining the parts ("" never); None: nothing does."""
    first = parts[0]
    for other in parts[1:]:
        for name in ("kind", "in_features", "group", "activations", "activation_group"):
            one, two = getattr(first, name), getattr(other, name)
            if one != two:
                return f"{name} {_told(one)} and {_told(two)}"
        if not _same_order(first.in_order, other.in_order):
            return "different orders of inputs"
    return None


def concat(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """One weight whose outputs are those of `parts` in turn. Codes are kept; scales of unlike formats meet in
    fp32. InvalidArgument: see `concat_obstacle`."""
    if obstacle := concat_obstacle(parts):
        raise InvalidArgument(f"weights cannot be joined: {obstacle}")
    if len({part.global_scale for part in parts}) > 1:
        parts = [
            replace(part, scale=part.scale.float() * part.global_scale, global_scale=1.0) for part in parts
        ]
    mixed = len({(part.zero_point, part.offset is None) for part in parts}) > 1
    if mixed:
        parts = [_with_offset(part) for part in parts]
    offsets = [part.offset for part in parts if part.offset is not None]
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts])
    return replace(
        parts[0],
        codes=codes.view(parts[0].codes.dtype),
        scale=_joined([part.scale for part in parts]),
        offset=_joined(offsets) if offsets else None,
    )


def _with_offset(part: QuantizedWeight) -> QuantizedWeight:
    """The same values with the zero point folded into the offset."""
    offset = part.scale.float() * part.global_scale * -part.zero_point
    if part.offset is not None:
        offset += part.offset
    return replace(part, offset=offset, zero_point=0)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [tensor.float() for tensor in tensors]
    return torch.cat(tensors)


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _told(value: object) -> str:
    return str(getattr(value, "value", value))
