"""Time that jumps from one event to the next. Equal times fire in the order in which they were set."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Entry = list[Any]
"""[when, number, action, arguments]; action None: cancelled."""

SLOT_S = 1e-4


class Clock:
    """now: seconds since the run began. fired: events so far.

    Events are filed by slots of time, and put in order when their slot comes: with thousands of nodes there
    are always thousands of events far ahead, most of which will be cancelled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.fired = 0
        self._made = 0
        self._filed: dict[int, list[Entry]] = {}  # by slot
        self._slots: list[int] = []  # of them, a heap
        self._slot = -1  # that has come
        self._soon: list[Entry] = []  # its events, and any before it: a heap

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> Entry:
        """Have `action` called at `when`, or now if that has passed. The entry is for `cancel`."""
        self._made += 1
        if when < self.now:
            when = self.now
        entry = [when, self._made, action, arguments]
        slot = int(when / SLOT_S)
        if slot <= self._slot:
            heapq.heappush(self._soon, entry)
        elif (filed := self._filed.get(slot)) is not None:
            filed.append(entry)
        else:
            self._filed[slot] = [entry]
            heapq.heappush(self._slots, slot)
        return entry

    @staticmethod
    def cancel(entry: Entry | None) -> None:
        """It does not fire. Over already, or none: no error."""
        if entry is not None:
            entry[2] = None

    def next(self) -> float | None:
        """When the next event fires; None: never."""
        while self._soon or self._turn():
            when: float = self._soon[0][0]
            if self._soon[0][2] is not None:
                return when
            heapq.heappop(self._soon)
        return None

    def step(self) -> bool:
        """Fire the next event; False if there is none."""
        while self._soon or self._turn():
            when, _, action, arguments = heapq.heappop(self._soon)
            if action is not None:
                self.now = when
                self.fired += 1
                action(*arguments)
                return True
        return False

    def _turn(self) -> bool:
        """To the next slot; False if there is none."""
        if not self._slots:
            return False
        self._slot = heapq.heappop(self._slots)
        self._soon = self._filed.pop(self._slot)
        heapq.heapify(self._soon)
        return True
