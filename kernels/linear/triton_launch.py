"""From a stored weight and prepared inputs to the launch of their product."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from baton.kernels.linear.triton_codes import factor, format_on
from baton.kernels.linear.triton_inputs import Inputs
from baton.kernels.linear.triton_kernel import linear_kernel
from baton.kernels.linear.triton_tuning import Tile, tile_for
from baton.kernels.linear.triton_weights import Stored
from baton.kernels.triton_support.device import Gpu
from baton.kernels.triton_support.launch import Launch

_TYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.int32: tl.int32,
}


@dataclass(frozen=True, slots=True)
class Target:
    """out: [rows, outputs], contiguous, which gets the product plus bias."""

    out: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """Several weights that are stored alike, each for some tiles of rows.

    table: as `expert_table` makes it. tile_experts: [tiles] int32, whose the tile is; in_rows, out_rows:
    [tiles * tile.rows] int32, for each of its rows which of x it is and where its result goes; -1: none.
    """

    table: torch.Tensor
    tile_experts: torch.Tensor
    in_rows: torch.Tensor
    out_rows: torch.Tensor
    tile: Tile


def alike(weights: Sequence[Stored]) -> bool:
    """Whether one launch may multiply by all of them. An order of inputs is each weight's own."""

    def form(weight: Stored) -> tuple[object, ...]:
        tensors = (weight.data, weight.scale, weight.offset)
        types = tuple(None if tensor is None else (tensor.dtype, tensor.shape) for tensor in tensors)
        return (
            weight.form,
            weight.steps,
            weight.group,
            weight.zero_point,
            weight.inputs,
            weight.rounding,
            types,
        )

    return all(weight.order is None and form(weight) == form(weights[0]) for weight in weights)


def expert_table(weights: Sequence[Stored], biases: Sequence[torch.Tensor | None], gpu: Gpu) -> torch.Tensor:
    """[experts, 5] int64, on the weights' device: pointers to weight, scale, offset and bias, and the bits of
    the factor. The caller keeps the weights alive. They are `alike`, biases of one dtype (or all None)."""
    rows = []
    for weight, bias in zip(weights, biases, strict=True):
        tensors = (weight.data, weight.scale, weight.offset, bias)
        bits = struct.unpack("<i", struct.pack("<f", _factor(weight, gpu)))[0]
        rows.append([0 if tensor is None else tensor.data_ptr() for tensor in tensors] + [bits])
    return torch.tensor(rows, dtype=torch.int64).to(weights[0].data.device)


def _factor(weight: Stored, gpu: Gpu) -> float:
    """What sums of codes lack, besides the scales."""
    missing = factor(format_on(weight.form, gpu))
    twice = weight.rounding is not None and weight.rounding.to == "fp8" and weight.rounding.as_codes
    return weight.global_scale * (missing**2 if twice else missing)


def product_launch(
    inputs: Inputs, weight: Stored, target: Target, gpu: Gpu, experts: Experts | None = None
) -> Launch:
    """experts: `weight` is one of them, which the others are like."""
    dot = dot_type(inputs.x, weight, gpu)
    rows = inputs.x.shape[0]
    if experts is None:
        tile = tile_of(rows, weight, dot, gpu)
        row_tiles = triton.cdiv(rows, tile.rows)
    else:
        tile, row_tiles = experts.tile, len(experts.tile_experts)
    arguments = {
        **_pointers(inputs, weight, target, experts),
        "rows": rows,
        "row_tiles": row_tiles,
        "sums_stride": rows,
        "x_stride": inputs.x.stride(0),
        "weight_stride": weight.data.stride(0),
        "out_stride": target.out.stride(0),
        **_constants(inputs, weight, gpu),
        "HAS_BIAS": target.bias is not None,
        "EXPERTS": experts is not None,
        "TYPES": _types(weight, target.bias),
        "DOT": dot,
        "STAGES": tile.stages,
        "TILE_O": tile.outputs,
        "TILE_R": tile.rows,
    }
    grid = (triton.cdiv(weight.outputs, tile.outputs) * row_tiles,)
    return Launch(linear_kernel, grid, arguments, tile.warps, tile.stages)


def dot_type(x: torch.Tensor, weight: Stored, gpu: Gpu) -> tl.dtype:
    """What x and weight meet in. The interpreter takes bfloat16 for integers: there it is fp32."""
    if x.dtype == torch.int8:
        return tl.int8
    if x.dtype == torch.uint8:
        return tl.float8e4nv if gpu.fp8_units else tl.float16
    if weight.form == "dense" and weight.data.dtype != x.dtype:
        return tl.float32
    return tl.float32 if x.dtype == torch.bfloat16 and gpu.arch == 0 else _TYPES[x.dtype]


def tile_of(rows: int, weight: Stored, dot: tl.dtype, gpu: Gpu) -> Tile:
    return tile_for(rows, weight.outputs, gpu, words=weight.steps.slices > 1, exact=dot is tl.float32)


def _pointers(inputs: Inputs, weight: Stored, target: Target, experts: Experts | None) -> dict[str, Any]:
    own = experts is None
    return {
        "x_ptr": inputs.x,
        "x_scales_ptr": inputs.scales,
        "sums_ptr": inputs.sums,
        "weight_ptr": weight.data if own else None,
        "scale_ptr": weight.scale if own else None,
        "offset_ptr": weight.offset if own else None,
        "bias_ptr": target.bias if own else None,
        "out_ptr": target.out,
        "experts_ptr": None if experts is None else experts.table,
        "tile_experts_ptr": None if experts is None else experts.tile_experts,
        "in_rows_ptr": None if experts is None else experts.in_rows,
        "out_rows_ptr": None if experts is None else experts.out_rows,
    }


def _constants(inputs: Inputs, weight: Stored, gpu: Gpu) -> dict[str, Any]:
    form = format_on(weight.form, gpu)
    rounded = {torch.int8: "int8", torch.uint8: "fp8"}.get(inputs.x.dtype, "none")
    return {
        "factor": _factor(weight, gpu),
        "INPUTS": weight.inputs,
        "OUTPUTS": weight.outputs,
        "GROUP": weight.group,
        "X_GROUP": 1 if weight.rounding is None else weight.rounding.group,
        "FORMAT": form,
        "ZERO": weight.zero_point,
        "SCALING": weight.steps.scaling,
        "ROUNDED": rounded,
        "HAS_OFFSET": weight.offset is not None,
        "PRECISION": "ieee" if inputs.x.dtype == torch.float32 else "tf32",
        "TILE_K": weight.steps.tile,
        "SLICES": weight.steps.slices,
    }


def _types(weight: Stored, bias: torch.Tensor | None) -> tuple[tl.dtype, ...]:
    tensors = (weight.data, weight.scale, weight.offset, bias)
    return tuple(tl.float32 if tensor is None else _TYPES[tensor.dtype] for tensor in tensors)
