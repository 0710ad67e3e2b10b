"""A TCP relay between any two hops, to delay, swallow or cut what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Relay:
    """`async with Relay("127.0.0.1:port") as relay:` then connect to `relay.address`.

    swallow_up / swallow_down: frames from the client / from the server vanish from now on.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.swallow_up = False
        self.swallow_down = False
        self.address = ""
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def black_hole(self) -> None:
        """The peer vanishes without a word: connections stay open, nothing goes through."""
        self.swallow_up = self.swallow_down = True

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}
        for pump in (self._pump(reader, up_writer, up=True), self._pump(up_reader, writer, up=False)):
            task = asyncio.ensure_future(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (self.swallow_up if up else self.swallow_down):
                    writer.write(data)
                    await writer.drain()
        writer.close()
