"""Step times by kind of work, for the routers' cost models. What mixed steps tell is up to `node.pace`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from baton.core.batch import Row

KEEP = 64

Sample = tuple[int, int, float]
Steps = tuple[int, int, Sequence[float]]
"""Decode steps that followed one another: rows, context tokens of the first, and the seconds of each."""


class StepSamples:
    """The latest KEEP measurements of each kind since the last `take`."""

    def __init__(self) -> None:
        self._prefill: deque[Sample] = deque(maxlen=KEEP)
        self._decode: deque[Steps] = deque(maxlen=KEEP)

    def add(self, rows: Sequence[Row], decode_rows: int, seconds: float) -> None:
        if decode_rows == len(rows):
            context = sum(row.context for row in rows)
            self._decode.append((len(rows), context, (seconds,)))
        elif decode_rows == 0:
            self._prefill.append((*as_one_chunk(rows), seconds))

    def add_steady(self, rows: int, context: int, seconds: Sequence[float]) -> None:
        """Decode steps that followed one another, the first over `context` tokens, each over `rows` more."""
        self._decode.append((rows, context, seconds))

    def add_decode(self, sample: Sample) -> None:
        """(rows, context tokens, seconds) of a step's decode."""
        rows, context, seconds = sample
        self._decode.append((rows, context, (seconds,)))

    def take(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        prefill, decode = tuple(self._prefill), tuple(_one_by_one(self._decode))
        self._prefill.clear()
        self._decode.clear()
        return prefill, decode


def _one_by_one(steps: Sequence[Steps]) -> list[Sample]:
    """The last KEEP of them."""
    latest: list[Sample] = []
    for rows, context, seconds in reversed(steps):
        for number in range(len(seconds) - 1, -1, -1):
            latest.append((rows, context + number * rows, seconds[number]))
            if len(latest) == KEEP:
                return latest[::-1]
    return latest[::-1]


def as_one_chunk(rows: Sequence[Row]) -> tuple[int, int]:
    """(n, c) of a single chunk with the same token count and attention work n * (c + n/2) as `rows`."""
    tokens = sum(row.length for row in rows)
    work = sum(row.length * (row.start + row.length / 2) for row in rows)
    return tokens, max(0, round(work / tokens - tokens / 2))
