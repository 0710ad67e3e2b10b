"""New keys and values into the pool, quantised on the way where the pool is."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.attention.kv_layer import CODE_MAX, KvLayer
from baton.kernels.attention.triton_codes import as_bfloat16, codes_of, kv_format, scales_of
from baton.kernels.attention.triton_tuning import padded
from baton.kernels.triton_support.device import Gpu
from baton.kernels.triton_support.launch import Launch

# Vectors (keys and values of some heads) that a program handles.
_VECTORS = 16


def write_launch(layer: KvLayer, kv: torch.Tensor, slots: torch.Tensor, gpu: Gpu) -> Launch:
    """kv: [tokens, 2, kv_heads, head_dim], contiguous in head_dim. slots: [tokens, 2] int32: block, and
    offset in it, of each token."""
    tokens, _, kv_heads, head_dim = kv.shape
    form, codes = kv_format(layer, gpu)
    scales = layer.scales
    scale_strides = (0, 0, 0, 0) if scales is None else scales.stride()
    vectors = min(_VECTORS, triton.next_power_of_2(2 * kv_heads))
    arguments = {
        "kv_ptr": kv,
        "codes_ptr": codes,
        "scales_ptr": scales,
        "slots_ptr": slots,
        "kv_token_stride": kv.stride(0),
        "kv_part_stride": kv.stride(1),
        "kv_head_stride": kv.stride(2),
        "code_block_stride": codes.stride(0),
        "code_part_stride": codes.stride(1),
        "code_slot_stride": codes.stride(2),
        "code_head_stride": codes.stride(3),
        "scale_block_stride": scale_strides[0],
        "scale_part_stride": scale_strides[1],
        "scale_slot_stride": scale_strides[2],
        "scale_head_stride": scale_strides[3],
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "FORMAT": form,
        "LARGEST": CODE_MAX.get(layer.codes.dtype, 0.0),
        "TILE_V": vectors,
        "TILE_D": padded(head_dim),
    }
    return Launch(write_kernel, (tokens, triton.cdiv(2 * kv_heads, vectors)), arguments)


@triton.jit
def write_kernel(
    kv_ptr,
    codes_ptr,
    scales_ptr,
    slots_ptr,
    kv_token_stride,
    kv_part_stride,
    kv_head_stride,
    code_block_stride,
    code_part_stride,
    code_slot_stride,
    code_head_stride,
    scale_block_stride,
    scale_part_stride,
    scale_slot_stride,
    scale_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """A program: one token, TILE_V of its 2 * KV_HEADS vectors."""
    token = tl.program_id(0).to(tl.int64)
    vector = tl.program_id(1) * TILE_V + tl.arange(0, TILE_V)
    dims = tl.arange(0, TILE_D)
    block = tl.load(slots_ptr + 2 * token).to(tl.int64)
    slot = tl.load(slots_ptr + 2 * token + 1)
    part = vector // KV_HEADS
    head = vector % KV_HEADS
    there = vector < 2 * KV_HEADS
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]

    source = token * kv_token_stride + part * kv_part_stride + head * kv_head_stride
    values = tl.load(kv_ptr + source[:, None] + dims[None, :], mask=mask, other=0.0)
    target = block * code_block_stride + part * code_part_stride + slot * code_slot_stride
    target = (target + head * code_head_stride)[:, None] + dims[None, :]
    if FORMAT == "plain":
        tl.store(codes_ptr + target, values.to(codes_ptr.dtype.element_ty), mask=mask)
    else:
        exact = values.to(tl.float32)
        scales = scales_of(exact, LARGEST)
        tl.store(codes_ptr + target, codes_of(exact, scales, FORMAT), mask=mask)
        place = block * scale_block_stride + part * scale_part_stride + slot * scale_slot_stride
        tl.store(scales_ptr + place + head * scale_head_stride, as_bfloat16(scales), mask=there)
