"""Decides which client streams may write next, so that reading from nodes is never starved by writing.

A stream that has something to say is queued; in each turn of the event loop only some of the queue get to
write. On a router with time to spare the queue is empty and every token goes out at once. On a busy one the
rest waits a turn while more of their tokens arrive and join the same message: the busier, the fewer and
larger the messages.
"""

from __future__ import annotations

import asyncio
from collections import deque

WRITES_PER_TURN = 12


class Waiter:
    """One stream's place. Only one task may wait on it."""

    __slots__ = ("_future", "_ready", "queued")

    def __init__(self) -> None:
        self.queued = False
        self._ready = False
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until it is this stream's turn. Turns that came while nobody waited count as one."""
        if not self._ready:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._ready = False

    def fire(self) -> None:
        self.queued = False
        self._ready = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Pacer:
    """First come, first served. writes_per_turn: streams that may write per turn of the event loop."""

    def __init__(self, writes_per_turn: int = WRITES_PER_TURN) -> None:
        self._writes_per_turn = writes_per_turn
        self._queue: deque[Waiter] = deque()
        self._scheduled = False

    def notify(self, waiter: Waiter) -> None:
        """`waiter` has something to write. A no-op while it is queued."""
        if waiter.queued:
            return
        waiter.queued = True
        self._queue.append(waiter)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        for _ in range(min(self._writes_per_turn, len(self._queue))):
            self._queue.popleft().fire()
        self._scheduled = bool(self._queue)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._turn)
