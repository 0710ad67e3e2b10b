"""Deadlines by name, on a clock that is an argument."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

Key = tuple[str, str]  # what is to happen, and to whom


class Timers:
    """At most one time per key. Setting and clearing cost O(log n); stale heap entries are swept lazily."""

    def __init__(self) -> None:
        self._when: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: object) -> bool:
        return key in self._when

    def __iter__(self) -> Iterator[Key]:
        return iter(self._when)

    def set(self, key: Key, when: float) -> None:
        """Have `key` fire at `when`, and not at any earlier set time."""
        self._when[key] = when
        self._made += 1  # equal times fire in the order they were set, and keys are never compared
        heapq.heappush(self._heap, (when, self._made, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._when):
            self._sweep()

    def clear(self, key: Key) -> None:
        self._when.pop(key, None)

    def next(self) -> float | None:
        """The earliest time set, None if there is none."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._when.get(key) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> list[Key]:
        """Keys whose time has come, earliest first; they are cleared."""
        due: list[Key] = []
        while (when := self.next()) is not None and when <= now:
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            due.append(key)
        return due

    def _sweep(self) -> None:
        seen: set[Key] = set()
        kept = []
        for entry in sorted(self._heap):
            if self._when.get(entry[2]) == entry[0] and entry[2] not in seen:
                seen.add(entry[2])
                kept.append(entry)
        self._heap = kept  # sorted, so a heap
