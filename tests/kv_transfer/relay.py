"""A link that can be slow, or break."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Relay:
    """Forwards one connection both ways: in small pieces, or cut off after so many bytes. held: bytes that it
    takes in before it forwards them; None: as many as the kernel likes."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        cut_after: int = 1 << 62,
        piece: int = 1 << 16,
        pause_s: float = 0.0,
        held: int | None = None,
    ) -> None:
        self._to, self._left, self._piece, self._pause_s = (host, port), cut_after, piece, pause_s
        self._server = socket.create_server(("127.0.0.1", 0))
        if held is not None:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, held)
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> int:
        self._threads[0].start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        for sock in (self._near, self._far):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._near, self._far, self._server):
            sock.close()

    def _accept(self) -> None:
        self._near, _ = self._server.accept()
        self._far = socket.create_connection(self._to)
        back = threading.Thread(target=self._forward, args=(self._far, self._near))
        self._threads.append(back)
        back.start()
        self._forward(self._near, self._far)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(min(self._piece, self._left))) and self._left > 0:
                sink.sendall(data)
                if source is self._near:
                    self._left -= len(data)
                    time.sleep(self._pause_s)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
