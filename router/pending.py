"""Requests that wait at the router: first come, first served, within what priority and age allow."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from baton.router.live import Live


class Pending:
    """Ordered by arrival plus `aging_s` per level of priority: a request is overtaken only by those that
    arrive within its handicap, so none starves and priority still counts. Retries keep their arrival."""

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._order: list[tuple[float, int]] = []
        self._items: list[Live] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._items)

    def __getitem__(self, position: int) -> Live:
        return self._items[position]

    def __contains__(self, live: Live) -> bool:
        position = bisect_left(self._order, live.order)
        return position < len(self._items) and self._items[position] is live

    @property
    def prefill_tokens(self) -> int:
        return sum([live.request.prefill_tokens for live in self._items])

    def push(self, live: Live) -> None:
        self._made += 1
        live.order = (live.facts.arrived_s + live.request.priority * self._aging_s, self._made)
        insort(self._order, live.order)
        self._items.insert(bisect_left(self._order, live.order), live)

    def remove(self, live: Live) -> None:
        """Unknown ones are no error."""
        if live in self:
            position = bisect_left(self._order, live.order)
            del self._order[position], self._items[position]

    def check(self) -> None:
        assert self._order == sorted(self._order)
        assert [live.order for live in self._items] == self._order
