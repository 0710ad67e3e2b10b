"""On GPUs: norm, rotation, quantisation and the KV write in one pass over a step's queries, keys, values."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.attention.kv_layer import CODE_MAX, KvLayer
from baton.kernels.attention.triton_codes import as_bfloat16, codes_of, kv_format, scales_of
from baton.kernels.rms_norm.triton import normed
from baton.kernels.rope.types import QkNorm, Rotation, Slots
from baton.kernels.triton_support.device import Gpu, gpu_of
from baton.kernels.triton_support.launch import Launch

_VECTORS = 16  # of a token, to a program


def rotate_and_store(
    qkv: torch.Tensor, rotation: Rotation, layer: KvLayer, slots: Slots, norm: QkNorm | None = None
) -> None:
    """See the package."""
    rotate_launch(qkv, rotation, layer, slots, norm, gpu_of(qkv.device)).run()


def rotate_launch(
    qkv: torch.Tensor, rotation: Rotation, layer: KvLayer, slots: Slots, norm: QkNorm | None, gpu: Gpu
) -> Launch:
    tokens, vectors, head_dim = qkv.shape
    form, codes = kv_format(layer, gpu)
    scales = layer.scales
    scale_strides = (0, 0, 0, 0) if scales is None else scales.stride()
    tile = min(_VECTORS, triton.next_power_of_2(vectors))
    arguments = {
        "qkv_ptr": qkv,
        "cos_ptr": rotation.cos,
        "sin_ptr": rotation.sin,
        "codes_ptr": codes,
        "scales_ptr": scales,
        "blocks_ptr": slots.blocks,
        "offsets_ptr": slots.offsets,
        "q_norm_ptr": None if norm is None else norm.q,
        "k_norm_ptr": None if norm is None else norm.k,
        "eps": 0.0 if norm is None else norm.eps,
        "code_block_stride": codes.stride(0),
        "code_part_stride": codes.stride(1),
        "code_slot_stride": codes.stride(2),
        "code_head_stride": codes.stride(3),
        "scale_block_stride": scale_strides[0],
        "scale_part_stride": scale_strides[1],
        "scale_slot_stride": scale_strides[2],
        "scale_head_stride": scale_strides[3],
        "HEADS": vectors - 2 * layer.kv_heads,
        "KV_HEADS": layer.kv_heads,
        "HEAD_DIM": head_dim,
        "FORMAT": form,
        "LARGEST": CODE_MAX.get(layer.codes.dtype, 0.0),
        "HAS_NORM": norm is not None,
        "TILE_V": tile,
        "TILE_D": triton.next_power_of_2(head_dim),
    }
    return Launch(rotate_kernel, (tokens, triton.cdiv(vectors, tile)), arguments, stages=1)


@triton.jit
def rotate_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    codes_ptr,
    scales_ptr,
    blocks_ptr,
    offsets_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    code_block_stride,
    code_part_stride,
    code_slot_stride,
    code_head_stride,
    scale_block_stride,
    scale_part_stride,
    scale_slot_stride,
    scale_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
    HAS_NORM: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """A program: one token, TILE_V of its HEADS + 2 * KV_HEADS vectors."""
    token = tl.program_id(0).to(tl.int64)
    vector = tl.program_id(1) * TILE_V + tl.arange(0, TILE_V)
    dims = tl.arange(0, TILE_D)
    inside = dims < HEAD_DIM
    mask = (vector < HEADS + 2 * KV_HEADS)[:, None] & inside[None, :]
    rotated = vector < HEADS + KV_HEADS
    dtype = qkv_ptr.dtype.element_ty

    # Each dimension and the one that it is paired with.
    partner = (dims + HEAD_DIM // 2) % HEAD_DIM
    vectors_ptr = qkv_ptr + (token * (HEADS + 2 * KV_HEADS) + vector)[:, None] * HEAD_DIM
    x = tl.load(vectors_ptr + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(vectors_ptr + partner[None, :], mask=mask & rotated[:, None], other=0.0).to(tl.float32)
    tl.debug_barrier()  # both are read before either is written, by whichever thread
    given = x
    if HAS_NORM:
        is_query = (vector < HEADS)[:, None]
        squares = tl.sum(x * x, 1)[:, None]
        q_weight = tl.load(q_norm_ptr + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        k_weight = tl.load(k_norm_ptr + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        weight = tl.where(is_query, q_weight, k_weight)
        x = normed(x, squares, weight, eps, HEAD_DIM, dtype).to(dtype).to(tl.float32)
        q_weight = tl.load(q_norm_ptr + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
        k_weight = tl.load(k_norm_ptr + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
        weight = tl.where(is_query, q_weight, k_weight)
        y = normed(y, squares, weight, eps, HEAD_DIM, dtype).to(dtype).to(tl.float32)
    cos = tl.load(cos_ptr + token * HEAD_DIM + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * HEAD_DIM + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
    x = tl.where(rotated[:, None], x * cos + y * sin, given).to(dtype)
    tl.store(vectors_ptr + dims[None, :], x, mask=mask & rotated[:, None])

    stored = (vector >= HEADS) & (vector < HEADS + 2 * KV_HEADS)
    part = (vector - HEADS) // KV_HEADS
    head = (vector - HEADS) % KV_HEADS
    block = tl.load(blocks_ptr + token).to(tl.int64)
    slot = tl.load(offsets_ptr + token).to(tl.int64)
    target = block * code_block_stride + part * code_part_stride + slot * code_slot_stride
    target = (target + head * code_head_stride)[:, None] + dims[None, :]
    mask = mask & stored[:, None]
    if FORMAT == "plain":
        tl.store(codes_ptr + target, x.to(codes_ptr.dtype.element_ty), mask=mask)
    else:
        exact = x.to(tl.float32)
        scales = scales_of(exact, LARGEST)
        tl.store(codes_ptr + target, codes_of(exact, scales, FORMAT), mask=mask)
        place = block * scale_block_stride + part * scale_part_stride + slot * scale_slot_stride
        tl.store(scales_ptr + place + head * scale_head_stride, as_bfloat16(scales), mask=stored)
