"""Several weights over the same inputs as one, row below row: q, k, v, or gate and up.

Parts that are stored differently meet in what can hold them all without changing a value: INT4 codes among
INT8 ones become INT8, larger groups are cut into smaller ones that share their scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize.weight import Codes, QuantizedWeight, unpack4

_INTEGERS = {Codes.INT8, Codes.INT4}


def concat_obstacle(parts: Sequence[QuantizedWeight]) -> str | None:
    """What keeps `concat` from joining the parts, in words; None: nothing does."""
    first = parts[0]
    for other in parts[1:]:
        kinds = {first.kind, other.kind}
        if len(kinds) > 1 and not kinds <= _INTEGERS:
            return f"{first.kind.value} and {other.kind.value} codes"
        for name in ("in_features", "activations", "activation_group"):
            one, two = getattr(first, name), getattr(other, name)
            if one != two:
                return f"{name} {one} and {two}"
        if not _same_order(first.in_order, other.in_order):
            return "inputs in different orders"
    return None


def concat(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """One weight whose outputs are those of `parts` in turn. InvalidArgument: see `concat_obstacle`."""
    if obstacle := concat_obstacle(parts):
        raise InvalidArgument(f"weights cannot be joined: {obstacle}")
    if len({part.kind for part in parts}) > 1:
        parts = [_widened(part) for part in parts]
    if len({part.group for part in parts}) > 1:
        parts = _regrouped(parts)
    if len({part.global_scale for part in parts}) > 1:
        parts = [replace(p, scale=p.scale.float() * p.global_scale, global_scale=1.0) for p in parts]
    if len({(part.zero_point, part.offset is None) for part in parts}) > 1:
        parts = [_with_offset(part) for part in parts]
    offsets = [part.offset for part in parts if part.offset is not None]
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts])
    return replace(
        parts[0],
        codes=codes.view(parts[0].codes.dtype),
        scale=_joined([part.scale for part in parts]),
        offset=_joined(offsets) if offsets else None,
    )


def _widened(part: QuantizedWeight) -> QuantizedWeight:
    """With INT8 codes. The zero point goes into symmetric ones; beside an offset there is none."""
    if part.kind is Codes.INT8:
        return part
    codes = unpack4(part.codes, part.in_features).to(torch.int8) - part.zero_point
    return replace(part, kind=Codes.INT8, codes=codes, zero_point=0)


def _regrouped(parts: Sequence[QuantizedWeight]) -> list[QuantizedWeight]:
    """In groups that divide those of each part; a group of a whole row may be cut anywhere."""
    inputs = parts[0].in_features
    group = math.gcd(*(part.group for part in parts if part.group < inputs))
    starts = torch.arange(0, inputs, group)

    def cut(part: QuantizedWeight) -> QuantizedWeight:
        index = (starts // part.group).to(part.scale.device)
        offset = None if part.offset is None else part.offset[:, index]
        return replace(part, group=group, scale=part.scale[:, index], offset=offset)

    return [cut(part) for part in parts]


def _with_offset(part: QuantizedWeight) -> QuantizedWeight:
    """With the zero point folded into the offset, exactly but for one rounding to fp32."""
    offset = part.scale.float() * (-part.zero_point * part.global_scale)
    if part.offset is not None:
        offset = offset + part.offset
    return replace(part, offset=offset, zero_point=0)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [tensor.float() for tensor in tensors]
    return torch.cat(tensors)


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
