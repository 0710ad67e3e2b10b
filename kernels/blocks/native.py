"""Bound to kernels/native/src/kv_convert.*"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import check_scales
from baton.kernels.blocks.types import KvVectors

_FORMATS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.float8_e4m3fn: 4,
}


class KvSide(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("strides", ctypes.c_int64 * 5),
        ("scale_strides", ctypes.c_int64 * 5),
        ("format", ctypes.c_int32),
    )


class KvConvertArgs(ctypes.Structure):
    _fields_ = (
        ("to", KvSide),
        ("source", KvSide),
        ("sizes", ctypes.c_int64 * 5),
        ("dim", ctypes.c_int64),
    )


def convert(to: KvVectors, source: KvVectors) -> None:
    """See the package. In the calling thread, whatever it is: transfers run beside the engine's steps, whose
    threads are not theirs to use. ValueError: the shapes differ, or head_dim is not contiguous."""
    for side in (to, source):
        if side.values.shape != to.values.shape or side.values.dim() != 6 or side.values.stride(-1) != 1:
            raise ValueError(f"cannot convert to {tuple(to.values.shape)} from {tuple(source.values.shape)}")
        if side.scales is not None and side.scales.shape != to.values.shape[:-1]:
            raise ValueError(f"scales {tuple(side.scales.shape)} of {tuple(to.values.shape)}")
    args = KvConvertArgs(
        to=_side(to), source=_side(source), sizes=tuple(to.values.shape[:-1]), dim=to.values.shape[-1]
    )
    op = native.function("kv_convert", KvConvertArgs)
    op(ctypes.addressof(args), _nobody())  # type: ignore[arg-type]


@cache
def _nobody() -> ctypes.c_void_p:
    """A pool without workers, which keeps nothing from call to call: any number of threads may use it."""
    loaded = native.library()
    assert loaded is not None, "native.available() is False"
    return ctypes.c_void_p(loaded.baton_pool_create(1, None))


def _side(vectors: KvVectors) -> KvSide:
    values, scales = vectors
    check_scales(values, scales)
    return KvSide(
        values=values.data_ptr(),
        scales=None if scales is None else scales.data_ptr(),
        strides=values.stride()[:5],
        scale_strides=(0,) * 5 if scales is None else scales.stride(),
        format=_FORMATS[values.dtype],
    )
