"""Bound to kernels/native/src/merge_states.*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native


class MergeStatesArgs(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("a", ctypes.c_void_p),
        ("a_lse", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("b_lse", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_lse", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
    )


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package. fp32 on the CPU."""
    states = [tensor.contiguous() for tensor in (out_a, lse_a, out_b, lse_b)]
    tokens, heads, head_dim = out_a.shape
    if any(state.shape != out_a.shape[: state.ndim] or state.dtype != torch.float32 for state in states):
        raise ValueError(f"states of shapes {[tuple(state.shape) for state in states]}, or not of fp32")
    out, lse = torch.empty(out_a.shape), torch.empty(lse_a.shape)
    rows = native.Counter(tokens)
    args = MergeStatesArgs(
        ctypes.addressof(rows),
        *(state.data_ptr() for state in (*states, out, lse)),
        heads=heads,
        head_dim=head_dim,
    )
    native.run(native.function("merge_states", MergeStatesArgs), args)
    return out, lse
