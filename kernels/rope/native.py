"""Bound to kernels/native/src/rope_store.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import KvLayer, check_scales
from baton.kernels.native.program import Call
from baton.kernels.rope.types import QkNorm, Rotation, Slots

_FORMATS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.float8_e4m3fn: 4,
}


class RopeStoreArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("qkv", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("code_strides", ctypes.c_int64 * 4),
        ("scale_strides", ctypes.c_int64 * 4),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


def call(
    qkv: torch.Tensor,
    rotation: Rotation,
    layer: KvLayer,
    slots: Slots,
    rows: native.Counter,
    norm: QkNorm | None = None,
) -> Call:
    """`rotate_and_store` of the first `rows` rows; qkv, rotation and slots are contiguous and have room for
    more. fp32."""
    codes, scales = layer
    check_scales(codes, scales)
    q_norm, k_norm, eps = (norm.q.data_ptr(), norm.k.data_ptr(), norm.eps) if norm else (None, None, 0.0)
    args = RopeStoreArgs(
        rows=ctypes.addressof(rows),
        qkv=qkv.data_ptr(),
        cos=rotation.cos.data_ptr(),
        sin=rotation.sin.data_ptr(),
        q_norm=q_norm,
        k_norm=k_norm,
        blocks=slots.blocks.data_ptr(),
        offsets=slots.offsets.data_ptr(),
        codes=codes.data_ptr(),
        scales=None if scales is None else scales.data_ptr(),
        code_strides=codes.stride()[:4],
        scale_strides=(0,) * 4 if scales is None else scales.stride(),
        heads=qkv.shape[1] - 2 * layer.kv_heads,
        kv_heads=layer.kv_heads,
        dim=layer.head_dim,
        format=_FORMATS[codes.dtype],
        eps=eps,
    )
    keep = (qkv, rotation, layer, slots, rows, norm)
    return Call(native.function("rope_store", RopeStoreArgs), args, keep)


def rotate_and_store(
    qkv: torch.Tensor, rotation: Rotation, layer: KvLayer, slots: Slots, norm: QkNorm | None = None
) -> None:
    """See the package. fp32 but for the pool."""
    if not qkv.is_contiguous():
        raise ValueError("qkv must be contiguous")
    slots = Slots(slots.blocks.contiguous(), slots.offsets.contiguous())
    one = call(qkv, rotation, layer, slots, native.Counter(len(qkv)), norm)
    native.run(one.op, one.args)
