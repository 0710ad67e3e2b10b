"""Bound to kernels/native/src/embedding.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.native.program import Call

_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class EmbeddingArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


def call(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
    """`embedding` of the first `rows` of ids [capacity] into out [capacity, width]. ValueError: these do not
    fit, or are not contiguous."""
    _check(ids, table, out)
    args = EmbeddingArgs(
        rows=ctypes.addressof(rows),
        ids=ids.data_ptr(),
        table=table.data_ptr(),
        out=out.data_ptr(),
        height=table.shape[0],
        width=table.shape[1],
        format=_FORMATS[table.dtype],
    )
    return Call(native.function("embedding", EmbeddingArgs), args, (ids, table, out, rows))


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """See the package."""
    if bool(((ids < 0) | (ids >= len(table))).any()):
        raise IndexError(f"ids of a table of {len(table)} rows, got {ids.tolist()}")
    out = torch.empty(len(ids), table.shape[1])
    one = call(ids.contiguous(), table, out, native.Counter(len(ids)))
    native.run(one.op, one.args)
    return out


def _check(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    if ids.dtype is not torch.int64 or ids.dim() != 1 or not ids.is_contiguous():
        raise ValueError(f"ids must be contiguous int64 [capacity], got {ids.dtype} {list(ids.shape)}")
    if table.dtype not in _FORMATS or table.dim() != 2 or not table.is_contiguous():
        raise ValueError(f"a table of {table.dtype} {list(table.shape)}, strides {table.stride()}")
    if out.dtype is not torch.float32 or out.shape[1:] != table.shape[1:] or not out.is_contiguous():
        raise ValueError(f"results of {out.dtype} {list(out.shape)} do not fit a table {list(table.shape)}")
