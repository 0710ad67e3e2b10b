"""Whether a process lives and whether it is ready, and the small HTTP server that tells it.

Alive: it does its work, however busy it is; a process that is not alive should be restarted. Ready: it
takes new requests; false while starting and draining. The server runs on a thread of its own, so that it
answers, truthfully, also when the event loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from baton.core.errors import FailedPrecondition
from baton.runtime.addresses import join_address

# Says what is wrong, or "".
Check = Callable[[], str]

BEAT_S = 0.25
CONNECTION_TIMEOUT_S = 5.0


class Health:
    """Thread-safe. Checks are called on the HTTP thread and must neither block nor raise."""

    def __init__(self, stall_s: float = 10.0) -> None:
        """stall_s: an event loop that did not turn for so long is taken for dead."""
        self._stall_s = stall_s
        self._not_ready = "starting"
        self._checks: list[Check] = []
        self._beat_at: float | None = None
        self._beater: asyncio.Task[None] | None = None

    def add_check(self, check: Check) -> None:
        """A condition of being alive."""
        self._checks.append(check)

    def set_ready(self) -> None:
        self._not_ready = ""

    def set_not_ready(self, reason: str) -> None:
        self._not_ready = reason or "not ready"

    def watch_loop(self) -> None:
        """Count the running event loop's stall as death from now on."""
        self._beat_at = time.monotonic()
        self._beater = asyncio.get_running_loop().create_task(self._beat(), name="health-beat")

    async def stop(self) -> None:
        if self._beater is not None:
            self._beater.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beater
            self._beater, self._beat_at = None, None

    def live(self) -> str:
        """What is wrong, or ""."""
        if self._beat_at is not None and (stalled := time.monotonic() - self._beat_at) > self._stall_s:
            return f"the event loop has not turned for {stalled:.1f} s"
        return next((trouble for check in self._checks if (trouble := check())), "")

    def ready(self) -> str:
        """What is missing, or ""."""
        return self._not_ready or self.live()

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_S)


class HealthServer:
    """GET /metrics, /health/live, /health/ready. 200: fine; 503: the body says what is wrong."""

    def __init__(self, health: Health, registry: CollectorRegistry, host: str, port: int = 0) -> None:
        """Binds at once (port 0: the kernel chooses); FailedPrecondition where that fails."""
        try:
            self._server = _Server(host, port, health, registry)
        except OSError as error:
            where = join_address(host, port)
            raise FailedPrecondition(
                f"cannot listen on {where} for metrics: {error.strerror}", field="metrics_port"
            ) from None
        self.address = join_address(host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="health-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.health = health
        self.metrics = registry
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for this host's name: it may take long and is used nowhere.
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CONNECTION_TIMEOUT_S

    def do_GET(self) -> None:
        match urlsplit(self.path).path:
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(self.server.metrics))
            case "/health/live":
                self._tell(self.server.health.live())
            case "/health/ready":
                self._tell(self.server.health.ready())
            case _:
                self._answer(404, "text/plain", b"not found\n")

    def _tell(self, trouble: str) -> None:
        self._answer(503 if trouble else 200, "text/plain; charset=utf-8", f"{trouble or 'ok'}\n".encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not news."""
