"""Bound to kernels/native/src/silu_mul.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.native.program import Call


class SiluMulArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("gate_up", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("inner", ctypes.c_int64),
        ("gate_up_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
    )


def call(gate_up: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
    """The first `rows` rows of gate_up [capacity, 2 * inner], fp32, into out [capacity, inner]."""
    args = SiluMulArgs(
        rows=ctypes.addressof(rows),
        gate_up=gate_up.data_ptr(),
        out=out.data_ptr(),
        inner=out.shape[1],
        gate_up_stride=gate_up.stride(0),
        out_stride=out.stride(0),
    )
    return Call(native.function("silu_mul", SiluMulArgs), args, (gate_up, out, rows))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See the package. fp32."""
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2)
    one = call(gate_up, out, native.Counter(len(gate_up)))
    native.run(one.op, one.args)
    return out
