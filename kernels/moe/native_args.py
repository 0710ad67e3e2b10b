"""Mirrors of kernels/native/src/moe.h"""

from __future__ import annotations

import ctypes


class MoeRouteArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("experts", ctypes.c_int64),
        ("logits_stride", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("renormalize", ctypes.c_int32),
    )


class MoeGroupArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("gathered", ctypes.c_void_p),
        ("experts", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
    )


class MoeCombineArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("top_k", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("residual", ctypes.c_int32),
    )
