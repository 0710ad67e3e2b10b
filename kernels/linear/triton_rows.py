"""Rows of a stored weight by id, read back: embeddings from the storage of a head."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.linear.triton_codes import decode8
from baton.kernels.linear.triton_weights import Stored
from baton.kernels.triton_support.launch import Launch

_TILE = 512


def rows_launch(weight: Stored, ids: torch.Tensor, out: torch.Tensor) -> Launch:
    """weight: of codes. ids: [n] int64; out: [n, inputs] fp32. The rule of `dequantize`, in fp32."""
    tile = min(_TILE, triton.next_power_of_2(weight.inputs))
    arguments = {
        "ids_ptr": ids,
        "codes_ptr": weight.data,
        "scale_ptr": weight.scale,
        "offset_ptr": weight.offset,
        "order_ptr": weight.order,
        "out_ptr": out,
        "codes_stride": weight.data.stride(0),
        "outputs": weight.outputs,
        "global_scale": weight.global_scale,
        "INPUTS": weight.inputs,
        "GROUP": weight.group,
        # Bits that every device can move: this is not where time goes.
        "FORMAT": "fp8-bits" if weight.form == "fp8" else weight.form,
        "ZERO": weight.zero_point,
        "HAS_OFFSET": weight.offset is not None,
        "HAS_ORDER": weight.order is not None,
        "TILE_K": weight.steps.tile,
        "SLICES": weight.steps.slices,
        "TILE": tile,
    }
    grid = (len(ids), triton.cdiv(weight.inputs, tile))
    return Launch(rows_kernel, grid, arguments, stages=1, fused=False)


@triton.jit
def rows_kernel(
    ids_ptr,
    codes_ptr,
    scale_ptr,
    offset_ptr,
    order_ptr,
    out_ptr,
    codes_stride,
    outputs,
    global_scale,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    TILE_K: tl.constexpr,
    SLICES: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = k < INPUTS
    id = tl.load(ids_ptr + row).to(tl.int64)
    codes_ptr += id * codes_stride
    if SLICES > 1:
        BITS: tl.constexpr = 16 // SLICES
        SLICE_K: tl.constexpr = TILE_K // SLICES
        in_slice = k % SLICE_K
        word = k // TILE_K * (TILE_K * BITS // 32) + in_slice // 2
        shift = k % TILE_K // SLICE_K * BITS + in_slice % 2 * 16
        codes = (tl.load(codes_ptr + word, mask=mask, other=0) >> shift) & ((1 << BITS) - 1)
        if FORMAT == "int8":
            values = (codes - 128 - ZERO).to(tl.float32)
        elif FORMAT == "int4":
            values = (codes - ZERO).to(tl.float32)
        else:
            bits = ((codes & 7) << 9) | ((codes & 8) << 12)
            values = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    else:
        values = decode8(tl.load(codes_ptr + k, mask=mask, other=0), FORMAT, tl.float32)
        if FORMAT == "fp8-bits":
            values = values * 256.0
        values = values - ZERO
    place = k // GROUP * outputs + id
    values = values * (tl.load(scale_ptr + place, mask=mask, other=0.0).to(tl.float32) * global_scale)
    if HAS_OFFSET:
        values += tl.load(offset_ptr + place, mask=mask, other=0.0).to(tl.float32)
    target = k
    if HAS_ORDER:
        target = tl.load(order_ptr + k, mask=mask, other=0)
    tl.store(out_ptr + row * INPUTS + target, values, mask=mask)
