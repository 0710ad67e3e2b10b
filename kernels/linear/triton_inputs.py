"""What happens to a product's inputs before it: rounding to codes, and the sums that offsets meet."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from baton.kernels.attention.triton_codes import codes_of
from baton.kernels.linear.triton_weights import Stored
from baton.kernels.triton_support.launch import Launch

_INPUTS = 512  # of a row, to a program, or all of a larger group
_ALIGN = 16  # rows of codes start at multiples of it
_CODES = {"int8": torch.int8, "fp8": torch.uint8}
_LARGEST = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True)
class Inputs:
    """x: [rows, inputs], any stride between rows: as it was, codes (e4m3 as uint8), or rounded values.
    scales: [groups of x, rows] fp32 of codes; sums: [flushes, rows] fp32, of what codes stand for."""

    x: torch.Tensor
    scales: torch.Tensor | None = None
    sums: torch.Tensor | None = None


def prepare_inputs(x: torch.Tensor, weight: Stored) -> tuple[Inputs, list[Launch]]:
    """x: [rows, inputs], contiguous in the inputs. The launches fill what the result holds."""
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    launches: list[Launch] = []
    scales, rounding, group = None, weight.rounding, 1
    if rounding is not None:
        group = min(rounding.group, weight.inputs)
        codes = _empty_codes(x, _CODES[rounding.to] if rounding.as_codes else torch.float32)
        scales = x.new_empty((triton.cdiv(weight.inputs, group), x.shape[0]), dtype=torch.float32)
        launches.append(_round_launch(x, codes, scales, group, rounding.to))
        x, scales = codes, scales if rounding.as_codes else None
    if weight.offset is None or weight.steps.scaling == "element":
        return Inputs(x, scales), launches
    sums = _empty_sums(x, weight)
    launches.append(_sums_launch(x, sums, weight.steps.flush or weight.inputs, scales, group))
    return Inputs(x, scales, sums), launches


def _empty_codes(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rows, inputs = x.shape
    stride = triton.cdiv(inputs, _ALIGN) * _ALIGN
    return x.new_empty((rows, stride), dtype=dtype)[:, :inputs]


def _empty_sums(x: torch.Tensor, weight: Stored) -> torch.Tensor:
    """For every flush of the loop, also those beyond the last input."""
    steps = weight.steps
    flushes = triton.cdiv(weight.inputs, steps.tile) * steps.tile // steps.flush if steps.flush else 1
    return x.new_empty((flushes, x.shape[0]), dtype=torch.float32)


def _round_launch(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, group: int, to: str) -> Launch:
    rows, inputs = x.shape
    tile = triton.next_power_of_2(group)
    groups = max(1, min(_INPUTS // tile, triton.next_power_of_2(scales.shape[0])))
    arguments = {
        "x_ptr": x,
        "codes_ptr": codes,
        "scales_ptr": scales,
        "rows": rows,
        "inputs": inputs,
        "x_stride": x.stride(0),
        "codes_stride": codes.stride(0),
        "GROUP": group,
        "FORMAT": to,
        "AS_VALUES": codes.dtype == torch.float32,
        "LARGEST": _LARGEST[to],
        "GROUPS": groups,
        "TILE": tile,
    }
    return Launch(round_kernel, (rows, triton.cdiv(scales.shape[0], groups)), arguments, stages=1)


def _sums_launch(
    x: torch.Tensor,
    sums: torch.Tensor,
    flush: int,
    scales: torch.Tensor | None = None,
    group: int = 1,
) -> Launch:
    """With scales, x is codes, of which those of one sum share a scale."""
    rows, inputs = x.shape
    groups = max(1, _INPUTS // triton.next_power_of_2(flush))
    arguments = {
        "x_ptr": x,
        "scales_ptr": scales,
        "sums_ptr": sums,
        "rows": rows,
        "inputs": inputs,
        "x_stride": x.stride(0),
        "FLUSH": flush,
        "GROUP": group,
        "SCALED": scales is not None,
        "flushes": sums.shape[0],
        "GROUPS": groups,
        "TILE": min(1024, triton.next_power_of_2(flush)),
    }
    return Launch(sums_kernel, (rows, triton.cdiv(sums.shape[0], groups)), arguments, stages=1)


@triton.jit
def round_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    rows,
    inputs,
    x_stride,
    codes_stride,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    AS_VALUES: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program: GROUPS groups of a row. See `reference.round_activations` for the rule."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    within = tl.arange(0, TILE)
    k = group[:, None] * GROUP + within[None, :]
    mask = (within < GROUP)[None, :] & (k < inputs)
    x = tl.load(x_ptr + row * x_stride + k, mask=mask, other=0.0).to(tl.float32)
    absmax = tl.max(tl.abs(x), 1)
    broken = tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), 1) > 0
    scales = tl.div_rn(absmax, tl.full([GROUPS], LARGEST, tl.float32))
    scales = tl.where(broken, float("nan"), scales)
    if AS_VALUES:
        codes = codes_of(x, scales, FORMAT)
        if FORMAT == "fp8":
            # Denormal in fp16, exactly: by bits, as not every device has an instruction.
            wide = codes.to(tl.uint16)
            bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
            values = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        else:
            values = codes.to(tl.float32)
        tl.store(codes_ptr + row * codes_stride + k, values * scales[:, None], mask=mask)
    else:
        tl.store(codes_ptr + row * codes_stride + k, codes_of(x, scales, FORMAT), mask=mask)
        tl.store(scales_ptr + group * rows + row, scales, mask=group * GROUP < inputs)


@triton.jit
def sums_kernel(
    x_ptr,
    scales_ptr,
    sums_ptr,
    rows,
    inputs,
    x_stride,
    flushes,
    FLUSH: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program: GROUPS sums of FLUSH inputs of a row each."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    total = tl.zeros([GROUPS, TILE], tl.float32)
    for begin in range(0, FLUSH, TILE):
        within = begin + tl.arange(0, TILE)
        k = place[:, None] * FLUSH + within[None, :]
        mask = (within < FLUSH)[None, :] & (k < inputs)
        total += tl.load(x_ptr + row * x_stride + k, mask=mask, other=0.0).to(tl.float32)
    sums = tl.sum(total, 1)
    if SCALED:
        there = place * FLUSH < inputs
        sums *= tl.load(scales_ptr + place * FLUSH // GROUP * rows + row, mask=there, other=0.0)
    tl.store(sums_ptr + place * rows + row, sums, mask=place < flushes)
