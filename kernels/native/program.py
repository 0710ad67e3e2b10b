"""A recorded list of operations that runs as one foreign call.

What changes from step to step lies behind pointers that stay: the number of rows in a `Counter`, token ids,
positions and block tables in buffers that are filled before each run. So a decoder is recorded once, and a
step costs Python one call however many layers there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

from baton.kernels import native


class _CCall(ctypes.Structure):
    _fields_ = (("op", ctypes.c_void_p), ("args", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Call:
    """One operation with its arguments. keep: whatever owns the memory that they point at."""

    op: native.Function
    args: ctypes.Structure
    keep: tuple[object, ...] = ()


class Program:
    """Calls in order. Holds everything that they point at."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls = tuple(calls)
        self._table = (_CCall * len(self.calls))(
            *(
                _CCall(ctypes.cast(call.op, ctypes.c_void_p), ctypes.addressof(call.args))  # type: ignore[arg-type]
                for call in self.calls
            )
        )
        loaded = native.library()
        assert loaded is not None, "native.available() is False"
        self._run = loaded.baton_run

    def __call__(self) -> None:
        self._run(self._table, len(self.calls), native.pool())
