"""Bound to kernels/native/src/attention.*

A query's result depends on nothing but the query and the keys that it sees: prefill in one go, in chunks,
token by token, with shared prefixes, by any number of threads, with either instruction set gives equal bits.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch

from baton.kernels import native
from baton.kernels.attention.kv_layer import KvLayer, check_scales
from baton.kernels.attention.plan import AttentionParams, AttentionPlan
from baton.kernels.native.program import Call

MOST_HEAD_DIM = 256
_KV_DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.int8: 3,
    torch.float8_e4m3fn: 4,
}
_ARRAYS = (
    "starts",
    "lengths",
    "first_tokens",
    "table_starts",
    "order",
    "shared_starts",
    "shared_ends",
    "tables",
)


class AttentionRows(ctypes.Structure):
    _fields_ = (("rows", ctypes.c_int64), *((name, ctypes.c_void_p) for name in _ARRAYS))


class AttentionArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("code_strides", ctypes.c_int64 * 4),
        ("scale_strides", ctypes.c_int64 * 4),
        ("q_stride", ctypes.c_int64),
        ("q_head_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("kv_dtype", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class NativePlan:
    """The step's rows, where recorded calls look for them. Give it each step's plan before they run."""

    def __init__(self, plan: AttentionPlan | None = None) -> None:
        self.rows = AttentionRows()
        self._packed: array[int] | None = None
        if plan is not None:
            self.update(plan)

    def update(self, plan: AttentionPlan, wanted: Sequence[int] | None = None) -> None:
        """wanted: tokens of the step before which no row needs a result; None: all are needed."""
        rows = self.rows
        packed = plan.packed if wanted is None else plan.packed_from(wanted)
        self._packed = packed  # the arrays live as long as this points at them
        at, step = packed.buffer_info()[0], len(plan.spans) * packed.itemsize
        rows.rows = len(plan.spans)
        (
            rows.starts,
            rows.lengths,
            rows.first_tokens,
            rows.table_starts,
            rows.order,
            rows.shared_starts,
            rows.shared_ends,
            rows.tables,
        ) = range(at, at + 8 * step, step) if step else (at,) * 8


def call(
    q: torch.Tensor,
    layer: KvLayer,
    plan: NativePlan,
    params: AttentionParams,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> Call:
    """`attention` of the plan's tokens: the first of q into the first of out.

    q: [capacity, heads, head_dim] fp32, a view of the qkv buffer for example. out: the same shape, heads
    contiguous. lse: [capacity, heads] fp32, contiguous. ValueError: shapes, strides or dtypes do not fit.
    """
    _check(q, layer)
    _check_results(q, out, lse)
    codes, scales = layer
    args = AttentionArgs(
        rows=ctypes.addressof(plan.rows),
        q=q.data_ptr(),
        out=out.data_ptr(),
        lse=None if lse is None else lse.data_ptr(),
        codes=codes.data_ptr(),
        scales=None if scales is None else scales.data_ptr(),
        code_strides=codes.stride()[:4],
        scale_strides=(0, 0, 0, 0) if scales is None else scales.stride(),
        q_stride=q.stride(0),
        q_head_stride=q.stride(1),
        out_stride=out.stride(0),
        heads=q.shape[1],
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        block_size=layer.block_size,
        kv_dtype=_KV_DTYPES[codes.dtype],
        window=params.window or 0,
        scale=params.scale,
        softcap=params.softcap or 0.0,
    )
    return Call(native.function("attention", AttentionArgs), args, (q, layer, plan, out, lse))


def attention(q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams) -> torch.Tensor:
    """See the package. fp32 queries, on the CPU."""
    out = torch.empty(q.shape)
    one = call(q, layer, NativePlan(plan), params, out)
    native.run(one.op, one.args)
    return out


def attention_lse(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package. fp32 queries, on the CPU."""
    out, lse = torch.empty(q.shape), torch.empty(q.shape[:2])
    one = call(q, layer, NativePlan(plan), params, out, lse)
    native.run(one.op, one.args)
    return out, lse


def _check(q: torch.Tensor, layer: KvLayer) -> None:
    codes, scales = layer
    heads, head_dim = q.shape[1:]
    if head_dim != layer.head_dim or not 0 < head_dim <= MOST_HEAD_DIM or heads % layer.kv_heads:
        raise ValueError(f"queries {tuple(q.shape)} do not fit a pool {tuple(codes.shape)}")
    if q.dtype != torch.float32 or q.stride(2) != 1 or codes.stride(4) != 1:
        raise ValueError("queries are fp32, and vectors contiguous")
    if codes.dtype not in _KV_DTYPES:
        raise ValueError(f"KV of {codes.dtype}")
    check_scales(codes, scales)
    if scales is not None and scales.shape != codes.shape[:4]:
        raise ValueError(f"scales {tuple(scales.shape)} do not fit a pool {tuple(codes.shape)}")


def _check_results(q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    heads, head_dim = q.shape[1:]
    fits = out.dtype == torch.float32 and out.shape == q.shape
    if not fits or out.stride(1) != head_dim or out.stride(2) != 1:
        raise ValueError(
            f"results {out.dtype} {tuple(out.shape)}, strides {out.stride()}, do not fit {tuple(q.shape)}"
        )
    if lse is None:
        return
    if lse.dtype != torch.float32 or lse.shape != (q.shape[0], heads) or not lse.is_contiguous():
        raise ValueError(f"sums {lse.dtype} {tuple(lse.shape)} do not fit queries {tuple(q.shape)}")
