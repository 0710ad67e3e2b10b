"""Weights of integer codes, and FP4, multiplied as integers. Bound to kernels/native/src/gemm_int*.

Activations are rounded inside the operation. A weight that names "int8" activations gets just those, see
`reference.round_activations`. Others get 16 bits, with a scale per token and at most 64 inputs of one weight
group, so an input is off by absmax / 65278 at most; weights that name "fp8" are among them, for rounding more
gains nothing here. A row with NaN or infinity in it becomes NaN, whatever the weight.
"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.linear import int_packing
from baton.kernels.linear.native_linear import NativeLinear, Norm, check_buffer
from baton.kernels.native import memory
from baton.kernels.native.program import Call
from baton.kernels.quantize import Codes, QuantizedWeight

_KINDS = {Codes.INT8: 0, Codes.INT4: 1, Codes.FP4: 2}
_STORE, _ADD, _GATE = range(3)  # what becomes of a product
_SCALES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class IntWeight(ctypes.Structure):
    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("block_count", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("zero_point", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("offset_type", ctypes.c_int32),
        ("factor", ctypes.c_float),
        ("narrow", ctypes.c_int32),
    )


class GemmIntArgs(ctypes.Structure):
    _fields_ = (
        ("weight", IntWeight),
        ("rows", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("finish", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class GemmIntRowsArgs(ctypes.Structure):
    _fields_ = (
        ("weight", IntWeight),
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
    )


class IntLinear(NativeLinear):
    """A weight in panels, with its scales in the dtype that they came in."""

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        blocks = int_packing.blocks(weight)
        tensors = {
            "codes": int_packing.packed_codes(weight, blocks),
            "scale": int_packing.panels(weight.scale),
            "blocks": blocks.table,
        }
        if weight.offset is not None:
            tensors["offset"] = int_packing.panels(weight.offset)
        if bias is not None:
            tensors["bias"] = int_packing.panels(bias.float().unsqueeze(1))
        if weight.in_order is not None or not blocks.in_place:
            tensors["source"] = _source(weight, blocks)
        tensors = {name: _stored(tensor) for name, tensor in tensors.items()}
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())
        self._keep = tuple(tensors.values())
        self._weight = IntWeight(
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            block_count=len(blocks.table),
            in_features=self.in_features,
            out_features=self.out_features,
            steps=len(blocks.column) // int_packing.STEP,
            groups=weight.groups,
            kind=_KINDS[weight.kind],
            zero_point=int_packing.zero_point(weight),
            scale_type=_SCALES[weight.scale.dtype],
            offset_type=0 if weight.offset is None else _SCALES[weight.offset.dtype],
            factor=int_packing.factor(weight),
            narrow=weight.activations == "int8",
        )

    def fused_call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        *,
        norm: Norm | None = None,
        gated: bool = False,
    ) -> Call | None:
        if gated and self.out_features % (2 * int_packing.LANES):
            return None
        check_buffer("x", x, self.in_features)
        check_buffer("out", out, self.out_features // 2 if gated else self.out_features)
        return self._product(x, out, rows, None, _GATE if gated else _STORE, norm)

    def _call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        first: native.Counter | None,
        residual: bool,
    ) -> Call:
        return self._product(x, out, rows, first, _ADD if residual else _STORE, None)

    def _product(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        first: native.Counter | None,
        finish: int,
        norm: Norm | None,
    ) -> Call:
        args = GemmIntArgs(
            weight=self._weight,
            rows=ctypes.addressof(rows),
            first=None if first is None else ctypes.addressof(first),
            x=x.data_ptr(),
            norm=None if norm is None else norm.weight.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            finish=finish,
            eps=0.0 if norm is None else norm.eps,
        )
        return Call(native.function("gemm_int", GemmIntArgs), args, (self, x, out, rows, first, norm))

    def _rows_call(self, ids: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
        args = GemmIntRowsArgs(
            weight=self._weight,
            rows=ctypes.addressof(rows),
            ids=ids.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
        )
        return Call(native.function("gemm_int_rows", GemmIntRowsArgs), args, (self, ids, out, rows))


def prepare(weight: QuantizedWeight, bias: torch.Tensor | None = None) -> IntLinear:
    """weight: of any kind but FP8."""
    return IntLinear(weight, bias)


def _stored(values: torch.Tensor) -> torch.Tensor:
    return memory.empty(tuple(values.shape), values.dtype).copy_(values)


def _source(weight: QuantizedWeight, blocks: int_packing.Blocks) -> torch.Tensor:
    """int32: the input at each place, -1: none."""
    if weight.in_order is None:
        return blocks.column.int()
    return torch.where(blocks.column < 0, -1, weight.in_order[blocks.column.clamp(min=0)]).int()
