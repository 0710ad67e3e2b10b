"""Bound to kernels/native/src/sample*"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence

import torch

from baton.kernels import native
from baton.kernels.sample.types import Choice, Survey


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


class _Work:
    """Arguments for up to `capacity` rows, and the memory that they point at."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.op = native.function("sample", SampleArgs)
        self.rows = native.Counter()
        kinds = (ctypes.c_double, ctypes.c_int64, ctypes.c_double, ctypes.c_double, ctypes.c_double)
        self.columns = [(kind * capacity)() for kind in kinds]
        self.ids = (ctypes.c_int64 * capacity)()
        self.args = SampleArgs(rows=ctypes.addressof(self.rows), ids=ctypes.addressof(self.ids))
        for name, column in zip(Choice._fields, self.columns, strict=True):
            setattr(self.args, name, ctypes.addressof(column))
        self._seen: weakref.ref[torch.Tensor] | None = None
        self.given = 0  # rows of logits

    def point_at(self, logits: torch.Tensor) -> torch.Tensor:
        """What must live until the run. Many steps bring the same tensor, and between two of them no cache
        holds torch's code: what is known of it is not asked again."""
        if self._seen is None or self._seen() is not logits:
            given, logits = logits, _by_row(logits)
            self.args.logits, self.args.stride = logits.data_ptr(), logits.stride(0)
            self.given, self.args.vocab = logits.shape
            self._seen = weakref.ref(logits) if logits is given else None
        return logits


class _State(threading.local):
    """What each calling thread has of its own, so that a step's choice makes nothing anew."""

    work: _Work | None = None


_state = _State()


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    """See the package. ValueError: not as many choices as rows."""
    if not choices:
        return []
    count, work = len(choices), _state.work
    if work is None or work.capacity < count:
        work = _state.work = _Work(2 * count)
    logits = work.point_at(logits)
    if work.given != count:
        raise ValueError(f"{count} choices for {work.given} rows of logits")
    for column, values in zip(work.columns, zip(*choices, strict=True), strict=True):
        column[:count] = values
    work.rows.value = count
    native.run(work.op, work.args)
    chosen: list[int] = work.ids[:count]
    return chosen


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
