"""Weights in panels of sixteen outputs: bound to kernels/native/src/{gemm_dense,dense_panels}.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.linear.native_linear import NativeLinear
from baton.kernels.native import memory
from baton.kernels.native.program import Call

LANES = 16
_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float8_e4m3fn: 3}


class GemmDenseArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("panels", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("activation_group", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("residual", ctypes.c_int32),
    )


class DenseRowsArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("panels", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


class DensePackArgs(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("panels", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("element_bytes", ctypes.c_int64),
    )


class PanelLinear(NativeLinear):
    """fp32, bf16, fp16 or e4m3 elements, widened to fp32 on the way into the registers.

    scale: [out, groups] fp32, one per `group` inputs of an output; e4m3 only. activation_group: inputs that
    share a scale where x is rounded to e4m3; 0: x is used as it is.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        scale: torch.Tensor | None = None,
        group: int = 0,
        activation_group: int = 0,
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._format = _FORMATS[weight.dtype]
        self._group, self._activation_group = group, activation_group
        self._panels = _packed(weight)
        self._scale = None if scale is None else _packed(scale)
        self._bias = None if bias is None else _packed(bias.float().unsqueeze(1))
        held = (self._panels, self._scale, self._bias)
        self.nbytes = sum(tensor.nbytes for tensor in held if tensor is not None)

    def _call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        first: native.Counter | None,
        residual: bool,
    ) -> Call:
        args = GemmDenseArgs(
            rows=ctypes.addressof(rows),
            first=None if first is None else ctypes.addressof(first),
            x=x.data_ptr(),
            panels=self._panels.data_ptr(),
            scale=_pointer(self._scale),
            bias=_pointer(self._bias),
            out=out.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            group=self._group,
            activation_group=self._activation_group,
            format=self._format,
            residual=residual,
        )
        return Call(native.function("gemm_dense", GemmDenseArgs), args, (self, x, out, rows, first))

    def _rows_call(self, ids: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
        args = DenseRowsArgs(
            rows=ctypes.addressof(rows),
            ids=ids.data_ptr(),
            panels=self._panels.data_ptr(),
            scale=_pointer(self._scale),
            out=out.data_ptr(),
            inputs=self.in_features,
            outputs=self.out_features,
            out_stride=out.stride(0),
            group=self._group,
            format=self._format,
        )
        return Call(native.function("dense_rows", DenseRowsArgs), args, (self, ids, out, rows))


def _packed(matrix: torch.Tensor) -> torch.Tensor:
    """[out, in] to [ceil(out / 16), in, 16]."""
    outputs, inputs = matrix.shape
    if matrix.stride(1) != 1 and inputs > 1:
        matrix = matrix.contiguous()
    panels = memory.empty((-(-outputs // LANES), inputs, LANES), matrix.dtype)
    args = DensePackArgs(
        weight=matrix.data_ptr(),
        panels=panels.data_ptr(),
        inputs=inputs,
        outputs=outputs,
        stride=matrix.stride(0),
        element_bytes=matrix.element_size(),
    )
    native.run(native.function("dense_pack", DensePackArgs), args)
    return panels


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
