"""Hand-off links as a decode node sees them: who is connected, and which writers still live.

A link is one prefill process. Its name is `node_id/incarnation`, so a restarted writer is another link, and a
writer that comes back (same incarnation) is recognised: its Hello promises that its earlier writes are over.
When a link breaks, a writer that shares our memory may still write: its pid is watched until it is dead or
back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from baton.proto.v1 import decode_node_pb2 as pb

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 65536

Out = asyncio.Queue[pb.HandoffResponse | None]


@dataclass(slots=True)
class Link:
    """One prefill process as seen from here. out: the current stream's messages; None: no stream now.
    kv_dtype: of its pool."""

    name: str
    incarnation: str
    transport: str = ""
    kv_dtype: str = ""
    out: Out | None = None
    pidfd: int | None = None
    opened: set[int] = field(default_factory=set)  # transfers whose writes may land


class Links:
    """All links of a decode node. `dead` is called with a link's name when its process is gone."""

    def __init__(self, dead: Callable[[str], None]) -> None:
        self._links: dict[str, Link] = {}
        self._dead = dead

    def get(self, name: str) -> Link | None:
        return self._links.get(name)

    def open(self, name: str, incarnation: str, pid: int | None) -> tuple[Link, bool]:
        """The link of this writer with a new stream, and whether it had been here before.

        pid: of the writer, if it runs on this host.
        """
        known = self._links.get(name)
        if known is not None and known.out is not None:
            known.out.put_nowait(None)  # an older stream of the same process: it is over
        link = known or Link(name, incarnation)
        link.out = asyncio.Queue()
        self._links[name] = link
        if link.pidfd is None and pid is not None:
            self._watch(link, pid)
        return link, known is not None

    def closed(self, link: Link, out: Out) -> bool:
        """The stream that owned `out` ended. False if a newer one has taken the link over."""
        if link.out is not out:
            return False
        link.out = None
        return True

    def send(self, name: str, message: pb.HandoffResponse) -> None:
        """To the link's stream; dropped when there is none: the break itself tells the writer everything."""
        link = self._links.get(name)
        if link is None or link.out is None:
            return
        if link.out.qsize() < QUEUE_LIMIT:
            link.out.put_nowait(message)
        else:
            log.error("a prefill node does not read its hand-off link: closing it", link=name)
            self.drop(name)

    def drop(self, name: str) -> None:
        """End the link's stream, unsent messages and all; its writer may come back with a new one."""
        link = self._links.get(name)
        if link is not None and link.out is not None:
            while not link.out.empty():
                link.out.get_nowait()
            link.out.put_nowait(None)

    def close(self) -> None:
        for name in list(self._links):
            self._forget(name)

    def _forget(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is None:
            return
        if link.out is not None:
            link.out.put_nowait(None)
        if link.pidfd is not None:
            asyncio.get_running_loop().remove_reader(link.pidfd)
            os.close(link.pidfd)
            link.pidfd = None

    def _watch(self, link: Link, pid: int) -> None:
        try:
            link.pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return  # gone already, no pid, or not ours to see: the lease and a Hello decide
        asyncio.get_running_loop().add_reader(link.pidfd, self._on_exit, link.name)

    def _on_exit(self, name: str) -> None:
        log.info("the process behind a hand-off link is gone", link=name)
        self._forget(name)
        self._dead(name)
