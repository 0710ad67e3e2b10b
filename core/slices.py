"""Long sequences in short slices.

One C call over millions of items keeps all other threads waiting for as long as it takes. A loop over slices
lets them in between: a prompt of any length can be looked at beside an event loop with streams to serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SLICE = 2**14  # about half a millisecond of conversion


def slices(items: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """`items` in order, at most `size` at a time; itself where it is short."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]
