"""Events on their way to one router: appended per engine turn, read by its Attach stream.

A router that reads slowly gets fewer, larger messages. What is large itself is made into messages only when
its turn comes, piece by piece, so that other work of the event loop goes on in between. The backlog is
bounded by what the router's own requests can produce; one that stops reading altogether is let go when the
backlog passes `limit`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from baton.core.errors import Unavailable
from baton.core.node_effects import TokensOut
from baton.node import wire
from baton.proto.v1 import node_pb2 as pb
from baton.runtime.grpc_channel import PIECE_BYTES


class Outbox:
    def __init__(self, router_id: str, limit: int) -> None:
        self.router_id = router_id
        self._limit = limit
        self._events: deque[pb.NodeEvent | TokensOut] = deque()
        self._ready = asyncio.Event()
        self._closed: Unavailable | None = None

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def put(self, events: Iterable[pb.NodeEvent | TokensOut]) -> None:
        if self._closed:
            return
        self._events.extend(events)
        if len(self._events) > self._limit:
            self.close(f"router {self.router_id} has not read {len(self._events)} events: it is let go")
            self._events.clear()
        self._ready.set()

    def close(self, reason: str) -> None:
        self._closed = Unavailable(reason)
        self._ready.set()

    async def messages(self) -> AsyncIterator[pb.AttachResponse]:
        """All that was put before the close; then raises Unavailable with its reason."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._events:
                yield next_message(self._events)
            if self._closed:
                raise self._closed


def next_message(events: deque[pb.NodeEvent | TokensOut]) -> pb.AttachResponse:
    """Take from the front what fits in one message, at least one event."""
    head: list[pb.NodeEvent] = []
    size = 0
    while events and size < PIECE_BYTES:
        item = events.popleft()
        event = item if isinstance(item, pb.NodeEvent) else wire.event(item)
        size += event.ByteSize()
        head.append(event)
    return pb.AttachResponse(events=head)
