"""The target's word on who may write where, for backends whose target carries out or guards each write."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Grant:
    """Permission of one transfer. Whoever writes holds `lock` and checks `live` for each bounded piece."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self.blocks = frozenset(blocks)
        self.lock = threading.Lock()
        self.live = True

    def covers(self, first: int, count: int) -> bool:
        """Blocks [first, first + count) are all granted."""
        return count <= len(self.blocks) and all(b in self.blocks for b in range(first, first + count))

    def end(self) -> None:
        """Returns when no piece is being written; none will be. Flag first, so that a busy writer yields."""
        self.live = False
        with self.lock:
            pass


class Permits:
    """Grants by (source incarnation, transfer id). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: dict[tuple[str, int], Grant] = {}

    def open(self, transfer_id: int, source: str, blocks: Sequence[int]) -> None:
        fresh = Grant(blocks)
        with self._lock:
            old = self._grants.get((source, transfer_id))
            self._grants[source, transfer_id] = fresh
        if old is not None:
            old.end()

    def find(self, transfer_id: int, source: str) -> Grant | None:
        with self._lock:
            return self._grants.get((source, transfer_id))

    def end(self, transfer_id: int, source: str) -> None:
        with self._lock:
            grant = self._grants.pop((source, transfer_id), None)
        if grant is not None:
            grant.end()

    def end_all(self) -> None:
        with self._lock:
            grants, self._grants = list(self._grants.values()), {}
        for grant in grants:
            grant.end()


def refusal(grant: Grant | None, transfer_id: int, first: int, count: int) -> str:
    """Why blocks [first, first + count) may not be written; "" where they may."""
    if grant is None or not grant.live:
        return f"the target has not opened transfer {transfer_id}, or has ended it"
    if not grant.covers(first, count):
        return f"blocks [{first}, {first + count}) are not all of transfer {transfer_id}"
    return ""
