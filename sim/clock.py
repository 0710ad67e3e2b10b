"""Time that jumps from one event to the next. Equal times fire in the order in which they were set."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Entry = list[Any]
"""[when, number, action, arguments]; action None: cancelled."""


class Clock:
    """now: seconds since the run began. fired: events so far."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fired = 0
        self._heap: list[Entry] = []
        self._made = 0

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> Entry:
        """Have `action` called at `when`, or now if that has passed. The entry is for `cancel`."""
        self._made += 1
        entry = [when if when > self.now else self.now, self._made, action, arguments]
        heapq.heappush(self._heap, entry)
        return entry

    @staticmethod
    def cancel(entry: Entry | None) -> None:
        """It does not fire. Over already, or none: no error."""
        if entry is not None:
            entry[2] = None

    def next(self) -> float | None:
        """When the next event fires; None: never."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Fire the next event; False if there is none."""
        heap = self._heap
        while heap:
            when, _, action, arguments = heapq.heappop(heap)
            if action is not None:
                self.now = when
                self.fired += 1
                action(*arguments)
                return True
        return False
