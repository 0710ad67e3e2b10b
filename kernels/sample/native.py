"""Bound to kernels/native/src/sample*"""

from __future__ import annotations

import ctypes

import torch

from baton.kernels import native
from baton.kernels.sample.types import SampleParams, Survey


class SampleArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("top_k", ctypes.c_void_p),
        ("top_p", ctypes.c_void_p),
        ("min_p", ctypes.c_void_p),
        ("noise", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("vocab", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


class SurveyArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("best", ctypes.c_void_p),
        ("mass", ctypes.c_void_p),
        ("top", ctypes.c_void_p),
        ("vocab", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


def sample(logits: torch.Tensor, params: SampleParams) -> torch.Tensor:
    """See the package."""
    logits = _by_row(logits)
    rows = native.Counter(len(logits))
    ids = torch.empty(len(logits), dtype=torch.int64)
    args = SampleArgs(
        rows=ctypes.addressof(rows),
        logits=logits.data_ptr(),
        temperature=params.temperature.data_ptr(),
        top_k=params.top_k.data_ptr(),
        top_p=params.top_p.data_ptr(),
        min_p=params.min_p.data_ptr(),
        noise=params.noise.data_ptr(),
        ids=ids.data_ptr(),
        vocab=logits.shape[1],
        stride=logits.stride(0),
    )
    native.run(native.function("sample", SampleArgs), args)
    return ids


def survey(logits: torch.Tensor, count: int) -> Survey:
    """See the package. count: 0 .. vocab."""
    logits = _by_row(logits)
    rows = native.Counter(len(logits))
    found = Survey(
        torch.empty(len(logits)),
        torch.empty(len(logits), dtype=torch.int64),
        torch.zeros(len(logits), count, dtype=torch.int64),
    )
    args = SurveyArgs(
        rows=ctypes.addressof(rows),
        logits=logits.data_ptr(),
        best=found.best.data_ptr(),
        mass=found.mass.data_ptr(),
        top=found.top.data_ptr(),
        vocab=logits.shape[1],
        stride=logits.stride(0),
        count=count,
    )
    native.run(native.function("survey", SurveyArgs), args)
    return found


def _by_row(logits: torch.Tensor) -> torch.Tensor:
    if logits.dtype is not torch.float32 or logits.device.type != "cpu":
        raise ValueError(f"logits must be fp32 on the CPU, got {logits.dtype} on {logits.device}")
    return logits if logits.stride(1) == 1 else logits.contiguous()
