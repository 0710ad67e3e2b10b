"""Integer weights as the compiled kernels read them: blocks of inputs, panels of outputs.

A block is a run of inputs in one group of the weight and one group of activations, so that a product sums it
exactly, as integers, and scales the sum once. Its inputs take whole steps of 8 places; places left over hold
no input, and activations are zero there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F

from baton.kernels.quantize import Codes, QuantizedWeight, unpack4

LANES = 16  # outputs in a panel
STEP = 8
_WIDE_BLOCK = 64  # inputs whose activations share a 16-bit scale; sums of up to 256 fit 32 bits
_NARROW_BLOCK = 2**15  # 8-bit activations share scales as the weight says; sums of up to 2^17 fit
_INT8_ZERO = 128
_FP4_ZERO, _FP4_UNIT = 12, 0.5  # codes become the integers 0..24, in units of a half


@dataclass(frozen=True, slots=True)
class Blocks:
    """table: int32 [blocks, 4]: first step, last step + 1, weight group, activation group.
    column: int64 [steps * 8], the code's column at each place, -1: none. in_place: places follow the columns;
    only the row's end is filled up. Shared by all weights of a kind: not to be written to."""

    table: torch.Tensor
    column: torch.Tensor
    in_place: bool


def blocks(weight: QuantizedWeight) -> Blocks:
    # Inputs whose activations share a scale across blocks.
    shared = min(weight.activation_group, weight.group) if weight.activations == "int8" else 0
    return _blocks(weight.in_features, weight.group, shared)


@lru_cache(maxsize=64)  # a model has a few, and some hundred weights of each
def _blocks(inputs: int, group: int, shared: int) -> Blocks:
    """shared: 0: nothing is shared."""
    edges = {*range(0, inputs, group), inputs}
    if shared:
        edges.update(range(0, inputs, shared), range(0, inputs, _NARROW_BLOCK))
    else:
        for start in range(0, inputs, group):
            edges.update(range(start, min(start + group, inputs), _WIDE_BLOCK))
    table: list[tuple[int, int, int, int]] = []
    column: list[int] = []
    for begin, end in pairwise(sorted(edges)):
        first_step = len(column) // STEP
        column += [*range(begin, end), *[-1] * (-(end - begin) % STEP)]
        activations = begin // shared if shared else len(table)
        table.append((first_step, len(column) // STEP, begin // group, activations))
    in_place = column[:inputs] == list(range(inputs))
    return Blocks(torch.tensor(table, dtype=torch.int32), torch.tensor(column), in_place)


def packed_codes(weight: QuantizedWeight, placed: Blocks) -> torch.Tensor:
    """uint8 [panels, steps, 2, 16, 4]: four inputs of an output together, outputs side by side. Codes of 4
    bits: [panels, steps, 16, 4], a step's second four inputs in the high halves. Not contiguous."""
    if weight.kind.packed:
        codes = unpack4(weight.codes, weight.in_features)
    else:
        codes = weight.codes.view(torch.uint8) ^ _INT8_ZERO  # + 128
    if placed.in_place:
        codes = F.pad(codes, (0, len(placed.column) - weight.in_features))
    else:
        codes = codes[:, placed.column.clamp(min=0)]
    codes = F.pad(codes, (0, 0, 0, -weight.out_features % LANES))
    quads = codes.view(-1, LANES, len(placed.column) // STEP, 2, 4).permute(0, 2, 3, 1, 4)
    return quads[:, :, 0] | quads[:, :, 1] << 4 if weight.kind.packed else quads


def panels(values: torch.Tensor) -> torch.Tensor:
    """[out, n] to [panels, n, 16], the last panel filled up with zeros. Not contiguous."""
    padded = F.pad(values, (0, 0, 0, -values.shape[0] % LANES))
    return padded.view(-1, LANES, values.shape[1]).transpose(1, 2)


def zero_point(weight: QuantizedWeight) -> int:
    """Of the integers that the kernels multiply."""
    if weight.kind is Codes.FP4:
        return _FP4_ZERO
    return weight.zero_point + (_INT8_ZERO if weight.kind is Codes.INT8 else 0)


def factor(weight: QuantizedWeight) -> float:
    """Of all scales."""
    return weight.global_scale * (_FP4_UNIT if weight.kind is Codes.FP4 else 1.0)
