"""A TCP relay between any two hops, to delay, throttle, swallow or cut what goes through it.

What it has taken in goes on, even when its sender has reset the connection meanwhile, as on a real network:
late data is what receivers must be safe from.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self

PIECE_BYTES = 1 << 16
MAX_PIECES = 1024  # taken in but not passed on


@dataclass(slots=True)
class Way:
    """What happens to the bytes of one direction, of all connections; may change at any time.

    swallow: they vanish. delay_s: how much later they arrive. bytes_per_s: how fast they go, None: at once.
    left_bytes: so many more may pass, then all connections are reset. taken_bytes, passed_bytes: came in, and
    went on, so far.
    """

    swallow: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    left_bytes: int | None = None
    taken_bytes: int = 0
    passed_bytes: int = 0


class Relay:
    """`async with Relay("127.0.0.1:port") as relay:` then connect to `relay.address`.

    listen: where; port 0: the kernel chooses. up: from those who connect to the target; down: back.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self._target = _split(target)
        self._listen = _split(listen)
        self.up = Way()
        self.down = Way()
        self.address = ""
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def black_hole(self) -> None:
        """The peer vanishes without a word: connections stay open, nothing goes through."""
        self.up.swallow = self.down.swallow = True

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def restore(self) -> None:
        """A good network again."""
        for way in (self.up, self.down):
            way.swallow, way.delay_s, way.bytes_per_s, way.left_bytes = False, 0.0, None, None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        self._pipe(reader, up_writer, self.up)
        self._pipe(up_reader, writer, self.down)

    def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_PIECES)
        for work in (_take(reader, pieces, way), self._pass_on(pieces, writer, way)):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, way: Way
    ) -> None:
        now = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while (piece := await pieces.get())[1]:
                due_s, data = piece
                await asyncio.sleep(due_s - now())
                while data:
                    data = await self._some(data, writer, way)
        writer.close()
        self._writers.discard(writer)

    async def _some(self, data: bytes, writer: asyncio.StreamWriter, way: Way) -> bytes:
        """Pass some of it on, as fast as the way is now; returns the rest."""
        if way.swallow:
            return b""
        size = len(data)
        if way.bytes_per_s is not None:
            size = max(1, min(size, int(way.bytes_per_s / 20)))
            await asyncio.sleep(size / way.bytes_per_s)
        if way.left_bytes is not None:
            size = min(size, way.left_bytes)
            way.left_bytes -= size
        writer.write(data[:size])
        await writer.drain()
        way.passed_bytes += size
        if way.left_bytes == 0:
            self.cut()
            raise ConnectionResetError
        return data[size:]


async def _take(reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]], way: Way) -> None:
    """Everything that comes, with the time when it is due; an empty piece ends it."""
    now = asyncio.get_running_loop().time
    data = b"?"
    while data:
        try:
            data = await reader.read(PIECE_BYTES)
        except OSError:
            data = b""
        way.taken_bytes += len(data)
        await pieces.put((now() + way.delay_s, data))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
