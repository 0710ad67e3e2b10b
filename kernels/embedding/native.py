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
        ("width", ctypes.c_int64),
        ("format", ctypes.c_int32),
    )


def call(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
    """`embedding` of the first `rows` of ids [capacity] into out [capacity, width]."""
    args = EmbeddingArgs(
        rows=ctypes.addressof(rows),
        ids=ids.data_ptr(),
        table=table.data_ptr(),
        out=out.data_ptr(),
        width=table.shape[1],
        format=_FORMATS[table.dtype],
    )
    return Call(native.function("embedding", EmbeddingArgs), args, (ids, table, out, rows))


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """See the package."""
    out = torch.empty(len(ids), table.shape[1])
    one = call(ids.contiguous(), table, out, native.Counter(len(ids)))
    native.run(one.op, one.args)
    return out
