"""How weights lie in a GPU's memory, and in which steps their inputs are summed.

Dense weights, FP8 and what is multiplied byte by byte stay as they are. Other codes are packed anew, eight of
4 bits or four of 8 to an int32: the inputs of a tile are four or two slices, and `(word >> bits * slice) &
0x000F000F` (or 0x00FF00FF) is two neighbouring inputs of that slice, each in 16 bits, where an exponent in
front makes floats of them (as in arXiv:2211.10017). Scales and offsets are transposed, so that those of
neighbouring outputs are read together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

import torch

from baton.kernels.quantize import Activations, Codes, QuantizedWeight, unpack4

# When sums of codes meet their scales: never; once, at the end; after each tile or slice of inputs; or each
# code by itself, where groups end anywhere.
Scaling = Literal["none", "row", "tile", "slice", "element"]

_LEAST_BYTES = 32  # inputs of one product of bytes
_PACKED_ROWS = 256  # outputs that are packed at once: what is unpacked on the way stays small


@dataclass(frozen=True, slots=True)
class Steps:
    """tile: inputs of one turn of the loop, a power of two; slices: products that it is cut into (1: codes
    are not in words). They depend on the weight alone, never on the number of rows: sums have one order."""

    tile: int
    slices: int
    scaling: Scaling

    @property
    def slice(self) -> int:
        return self.tile // self.slices

    @property
    def flush(self) -> int:
        """Inputs that share a scale and are summed before they meet it; 0: all, or none."""
        return {"tile": self.tile, "slice": self.slice}.get(self.scaling, 0)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Of inputs, to codes with a scale per token and `group` inputs. as_codes: codes are multiplied by codes;
    otherwise, where groups are too odd for that, inputs are rounded and stay numbers."""

    to: Activations
    group: int
    as_codes: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A weight [outputs, inputs] on its device.

    form: "dense", or the name of its codes. data: [outputs, inputs], or words [outputs, *] int32.
    scale, offset: [groups, outputs]. See QuantizedWeight for the rest.
    """

    form: str
    data: torch.Tensor
    inputs: int
    steps: Steps
    scale: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    group: int = 0
    zero_point: int = 0
    global_scale: float = 1.0
    rounding: Rounding | None = None
    order: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        return self.data.shape[0]

    @property
    def nbytes(self) -> int:
        tensors = (self.data, self.scale, self.offset, self.order)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def store(weight: torch.Tensor | QuantizedWeight) -> Stored:
    if isinstance(weight, torch.Tensor):
        steps = Steps(32 if weight.element_size() > 2 else 64, 1, "none")
        return Stored("dense", weight.contiguous(), weight.shape[1], steps)
    rounding: Rounding | None = None
    steps = _steps(weight, rounded=weight.activations is not None)
    if weight.activations is not None:
        as_codes = steps.scaling != "element" and steps.slice >= _LEAST_BYTES
        rounding = Rounding(weight.activations, min(weight.activation_group, weight.group), as_codes)
        steps = steps if as_codes else _steps(weight, rounded=False)
    return Stored(
        form=weight.kind.value,
        data=_plain(weight) if steps.slices == 1 else _pack(weight, steps),
        inputs=weight.in_features,
        steps=steps,
        scale=weight.scale.T.contiguous(),
        offset=None if weight.offset is None else weight.offset.T.contiguous(),
        group=weight.group,
        zero_point=weight.zero_point,
        global_scale=weight.global_scale,
        rounding=rounding,
        order=weight.in_order,
    )


def _steps(weight: QuantizedWeight, *, rounded: bool) -> Steps:
    """rounded: inputs are codes as well, whose groups count like those of the weight."""
    slices = 4 if weight.kind.packed else 1 if rounded or weight.kind is Codes.FP8 else 2
    groups = [weight.group, min(weight.activation_group, weight.group)] if rounded else [weight.group]
    if weight.groups == 1 and not rounded:
        return Steps(128, slices, "row")
    inputs = weight.in_features
    shared = gcd(*(group for group in groups if group < inputs))  # a group of a whole row may be cut anywhere
    even = shared & -shared or 128
    if even < 16:
        return Steps(128, slices, "element")
    if slices == 1 or even >= 128:
        return Steps(min(even, 128), slices, "tile")
    return Steps(min(even * slices, 128), slices, "slice")


def _plain(weight: QuantizedWeight) -> torch.Tensor:
    codes = weight.codes.contiguous()
    return codes.view(torch.uint8) if weight.kind is Codes.FP8 else codes


def _pack(weight: QuantizedWeight, steps: Steps) -> torch.Tensor:
    """Into words, INT8 as unsigned numbers 128 greater."""
    outputs, slices = weight.out_features, steps.slices
    tiles, bits = -(-weight.in_features // steps.tile), 16 // slices
    device = weight.codes.device
    shifts = torch.arange(slices, device=device)[:, None, None] * bits + torch.arange(2, device=device) * 16
    words = torch.empty(outputs, tiles * steps.tile * bits // 32, dtype=torch.int32, device=device)
    for begin in range(0, outputs, _PACKED_ROWS):
        part = slice(begin, begin + _PACKED_ROWS)
        codes = weight.codes[part]
        codes = unpack4(codes, weight.in_features).long() if weight.kind.packed else codes.long() + 128
        codes = torch.nn.functional.pad(codes, (0, tiles * steps.tile - weight.in_features))
        packed = (codes.view(-1, tiles, slices, steps.slice // 2, 2) << shifts).sum((2, 4)).flatten(1)
        words[part] = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return words
