"""Events on their way to one router: appended per engine turn, read by its Attach stream.

A router that reads slowly gets fewer, larger messages. The backlog is bounded by what its own requests can
produce; a router that stops reading altogether is let go when the backlog passes `limit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from baton.core.errors import Unavailable
from baton.proto.v1 import node_pb2 as pb

MESSAGE_EVENTS = 4096


class Outbox:
    def __init__(self, router_id: str, limit: int) -> None:
        self.router_id = router_id
        self._limit = limit
        self._events: list[pb.NodeEvent] = []
        self._ready = asyncio.Event()
        self._closed: Unavailable | None = None

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def put(self, events: Iterable[pb.NodeEvent]) -> None:
        if self._closed:
            return
        self._events.extend(events)
        if len(self._events) > self._limit:
            self.close(f"router {self.router_id} has not read {len(self._events)} events: it is let go")
        self._ready.set()

    def close(self, reason: str) -> None:
        self._closed = Unavailable(reason)
        self._ready.set()

    async def messages(self) -> AsyncIterator[pb.AttachResponse]:
        """Until closed; then raises Unavailable with the reason."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._closed:
                raise self._closed
            while self._events:
                head, self._events = self._events[:MESSAGE_EVENTS], self._events[MESSAGE_EVENTS:]
                yield pb.AttachResponse(events=head)
