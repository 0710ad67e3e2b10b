"""The product: a program computes a tile of outputs for a tile of rows, over all inputs, in ascending order.

Outputs are the rows of the tensor cores' tiles, tokens their columns. So few tokens waste little, sm_90 takes
codes from registers, and one token and a thousand are multiplied by the same instructions.
"""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

from baton.kernels.linear.triton_codes import decode8, decode_words

_BAND = tl.constexpr(8)


@triton.jit
def linear_kernel(
    x_ptr,
    x_scales_ptr,
    sums_ptr,
    weight_ptr,
    scale_ptr,
    offset_ptr,
    bias_ptr,
    out_ptr,
    experts_ptr,
    tile_experts_ptr,
    in_rows_ptr,
    out_rows_ptr,
    rows,
    row_tiles,
    sums_stride,
    x_stride,
    weight_stride,
    out_stride,
    factor,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    X_GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    SCALING: tl.constexpr,
    ROUNDED: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TYPES: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    TILE_O: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_K: tl.constexpr,
    SLICES: tl.constexpr,
):
    """x_scales, sums: [groups of x, sums_stride] fp32. EXPERTS: see `triton_launch.Experts`; TYPES: what its
    pointers point to."""
    out_tiles: tl.constexpr = (OUTPUTS + TILE_O - 1) // TILE_O
    SLICE_K: tl.constexpr = TILE_K // SLICES
    WORDS: tl.constexpr = TILE_K // (2 * SLICES)
    FLUSH: tl.constexpr = SLICE_K if SCALING == "slice" else TILE_K
    pid = tl.program_id(0)
    # Tiles of rows that share a weight come together, while it is in the cache.
    band = pid // (_BAND * out_tiles) * _BAND
    in_band = pid % (_BAND * out_tiles)
    size = tl.minimum(row_tiles - band, _BAND)
    tile_r = band + in_band % size
    tile_o = in_band // size
    out = tile_o * TILE_O + tl.arange(0, TILE_O)
    out_there = out < OUTPUTS
    safe_out = tl.minimum(out, OUTPUTS - 1)  # what is read instead is never stored
    row = tile_r * TILE_R + tl.arange(0, TILE_R)
    tiles = (INPUTS + TILE_K - 1) // TILE_K
    if EXPERTS:
        in_row = tl.load(in_rows_ptr + row)
        out_row = tl.load(out_rows_ptr + row)
        row_there = in_row >= 0
        in_row = tl.maximum(in_row, 0)
        expert = tl.load(tile_experts_ptr + tile_r)
        tiles = tl.where(expert < 0, 0, tiles)
        table_ptr = experts_ptr + 5 * tl.maximum(expert, 0)
        weight_ptr = tl.multiple_of(tl.load(table_ptr).to(tl.pointer_type(TYPES[0])), 16)
        scale_ptr = tl.multiple_of(tl.load(table_ptr + 1).to(tl.pointer_type(TYPES[1])), 16)
        offset_ptr = tl.multiple_of(tl.load(table_ptr + 2).to(tl.pointer_type(TYPES[2])), 16)
        bias_ptr = tl.load(table_ptr + 3).to(tl.pointer_type(TYPES[3]))
        factor = tl.load(table_ptr + 4).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        row_there = row < rows
        in_row = tl.minimum(row, rows - 1)
        out_row = row
    w_rows_ptr = weight_ptr + safe_out.to(tl.int64)[:, None] * weight_stride
    x_rows_ptr = x_ptr + in_row.to(tl.int64)[None, :] * x_stride

    acc = tl.zeros([TILE_O, TILE_R], tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        if SLICES == 1:
            k = tile * TILE_K + tl.arange(0, TILE_K)
            if INPUTS % TILE_K == 0:
                codes = tl.load(w_rows_ptr + k[None, :])
            else:
                codes = tl.load(w_rows_ptr + k[None, :], mask=(k < INPUTS)[None, :], other=0)
        else:
            word = tile * WORDS + tl.arange(0, WORDS)
            codes = tl.load(w_rows_ptr + word[None, :])
        for part in tl.static_range(SLICES):
            first = tile * TILE_K + part * SLICE_K
            k = first + tl.arange(0, SLICE_K)
            if INPUTS % TILE_K == 0:
                x = tl.load(x_rows_ptr + k[:, None])
            else:
                x = tl.load(x_rows_ptr + k[:, None], mask=(k < INPUTS)[:, None], other=0)
            x = decode8(x, FORMAT, DOT) if ROUNDED == "fp8" else x.to(DOT)
            if FORMAT == "dense":
                w = codes.to(DOT)
            else:
                w = (
                    decode8(codes, FORMAT, DOT)
                    if SLICES == 1
                    else decode_words(codes, part, FORMAT, ZERO, DOT)
                )
            if SCALING == "element":
                place = (tl.minimum(k, INPUTS - 1) // GROUP)[None, :] * OUTPUTS + safe_out[:, None]
                scales = tl.load(scale_ptr + place).to(tl.float32) * factor
                exact = w.to(tl.float32) * scales
                if HAS_OFFSET:
                    exact += tl.load(offset_ptr + place).to(tl.float32)
                w = exact.to(DOT)
            if SCALING == "tile" or SCALING == "slice":
                if part == 0 or SCALING == "slice":
                    sums = tl.zeros([TILE_O, TILE_R], tl.int32 if ROUNDED == "int8" else tl.float32)
                sums = tl.dot(w, x, sums, input_precision=PRECISION, out_dtype=sums.dtype)
                if part == SLICES - 1 or SCALING == "slice":
                    # What a tile has beyond the last input adds 0.
                    step = first // FLUSH
                    last = tl.minimum(step * FLUSH, INPUTS - 1)
                    scales = tl.load(scale_ptr + last // GROUP * OUTPUTS + safe_out).to(tl.float32) * factor
                    flushed = sums.to(tl.float32)
                    if ROUNDED != "none":
                        x_scales = tl.load(x_scales_ptr + last // X_GROUP * sums_stride + in_row)
                        flushed = flushed * x_scales[None, :]
                    acc += flushed * scales[:, None]
                    if HAS_OFFSET:
                        offsets = tl.load(offset_ptr + last // GROUP * OUTPUTS + safe_out).to(tl.float32)
                        acc += offsets[:, None] * tl.load(sums_ptr + step * sums_stride + in_row)[None, :]
            else:
                acc = tl.dot(w, x, acc, input_precision=PRECISION)

    if SCALING == "row":
        acc = acc * (tl.load(scale_ptr + safe_out).to(tl.float32) * factor)[:, None]
        if HAS_OFFSET:
            offsets = tl.load(offset_ptr + safe_out).to(tl.float32)
            acc += offsets[:, None] * tl.load(sums_ptr + in_row)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + safe_out).to(tl.float32)[:, None]
    place = out_row.to(tl.int64)[None, :] * out_stride + out[:, None]
    mask = out_there[:, None] & row_there[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=mask)
