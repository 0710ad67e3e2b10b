"""Bound to kernels/native/src/rms_norm.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.native.program import Call


class RmsNormArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


def call(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    rows: native.Counter,
    residual: torch.Tensor | None = None,
) -> Call:
    """`rms_norm` of the first `rows` rows of x [capacity, width] into out, of the same shape (it may be x).

    residual: [capacity, width] contiguous: is added to x, in place, first. All fp32 on the CPU.
    """
    args = RmsNormArgs(
        rows=ctypes.addressof(rows),
        x=x.data_ptr(),
        residual=None if residual is None else residual.data_ptr(),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        width=x.shape[1],
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        eps=eps,
    )
    return Call(native.function("rms_norm", RmsNormArgs), args, (x, weight, out, rows, residual))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See the package. fp32, last dimension contiguous."""
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty(flat.shape)
    one = call(flat, weight, eps, out, native.Counter(len(flat)))
    native.run(one.op, one.args)
    return out.view(x.shape)


def add_rms_norm(x: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See the package. fp32, contiguous."""
    width = x.shape[-1]
    out = torch.empty(x.shape)
    rows = native.Counter(x.numel() // width)
    flat = x.view(-1, width)
    one = call(flat, weight, eps, out.view(-1, width), rows, residual=update.contiguous())
    native.run(one.op, one.args)
    return out
