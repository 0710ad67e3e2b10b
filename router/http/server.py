"""uvicorn on the router's own event loop: bound by us, so that mistakes are told, and stopped by us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.router.http.keys import ApiKeys
from baton.runtime.addresses import join_address
from baton.runtime.grpc_channel import MAX_METADATA_BYTES
from baton.runtime.grpc_server import BindError

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than what clients' pools and proxies keep a connection, so that they close it
HEAD_TIMEOUT_S = 30.0
STOP_GRACE_S = 1
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """port 0: the kernel chooses. reuse_port: only where several processes serve one port."""

    host: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    keys: ApiKeys = field(default_factory=ApiKeys)


class HttpServer:
    """`start`, then `address`; `stop`. All on one event loop."""

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
        self._options = options
        config = uvicorn.Config(
            app,
            http=_Protocol,
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """host:port that was bound."""
        return join_address(self._options.host, self.port)

    async def start(self) -> None:
        """Bind and serve; BindError."""
        listener = _bound(self._options)
        self.port = listener.getsockname()[1]
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="http")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Refuse new connections, give what runs STOP_GRACE_S, then end it. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            self._server.stopping.set()
            await serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Once a second, for the Date header; the end is waited for, not polled."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self.stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's."""
        yield


class _Protocol(HttpToolsProtocol):
    """With bounds on a request's head, its size and its time, which neither uvicorn nor its parser has."""

    _head_bytes = 0.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._head_bytes:
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > 2 * MAX_METADATA_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_headers_complete(self) -> None:
        self._head_bytes = float("-inf")
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0.0
        super().on_message_complete()

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._no_head)

    def _no_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # an answer under way is more than a half head
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _bound(options: HttpOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((options.host.strip("[]"), options.port))
        listener.listen(BACKLOG)  # here, where a port in use can be told
    except OSError as error:
        listener.close()
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        where = join_address(options.host, options.port)
        raise BindError(f"cannot listen on {where} for HTTP: {why}", field="router.http.port") from None
    listener.setblocking(False)
    return listener
