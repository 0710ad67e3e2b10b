"""The TCP backend: payload goes from pool memory to the socket and from the socket into pool memory.

A write is applied only when the target has said so. The target alone touches its pool, so a fence is exact:
whatever still arrives is read and dropped. A source that gives up resets its connection, and a target drops
what it has not read of a connection that was reset or closed.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import time
from collections.abc import Callable, Sequence

from baton.core.errors import FailedPrecondition, Unavailable
from baton.kv_transfer.api import Completion, Endpoint, Peer, Pool
from baton.kv_transfer.completions import Completions
from baton.kv_transfer.layout import compatible
from baton.kv_transfer.pool_view import PoolView
from baton.kv_transfer.tcp.inbound import Inbound
from baton.kv_transfer.tcp.loop import Loop
from baton.kv_transfer.tcp.outbound import Outbound
from baton.kv_transfer.tcp.sockets import TcpOptions, abort, dial, listen, tune
from baton.kv_transfer.tcp.target import Target

log = logging.getLogger(__name__)


class TcpTransport:
    """incarnation: this process's, as source and as target. FailedPrecondition: the port cannot be had."""

    kind = "tcp"

    def __init__(self, incarnation: str, options: TcpOptions | None = None) -> None:
        self._options = options or TcpOptions()
        self._target = Target(incarnation)
        self._completions = Completions()
        sock = listen(self._options)
        self.port: int = sock.getsockname()[1]
        self._loop = Loop("kv-tcp")
        self._outbound: list[Outbound] = []
        listener = _Listener(self._loop, sock, self._target, self._options)
        self._loop.call(listener, lambda: self._loop.watch(listener, select.EPOLLIN))

    def register(self, pool: Pool) -> None:
        self._target.view = PoolView(pool)

    def describe(self) -> Endpoint:
        host = self._options.advertise or self._options.host
        return Endpoint(self.kind, {"host": host, "port": str(self.port)})

    def connect(self, peer: Peer) -> Outbound:
        view = self._target.view
        if view is None:
            raise FailedPrecondition("no pool is registered")
        if problems := compatible(view.layout, peer.layout):
            raise FailedPrecondition(f"{peer.node_id}: {'; '.join(problems)}")
        sock = dial(peer, self._target.incarnation, self._options)
        outbound = Outbound(self._loop, sock, view, peer, self._completions)
        outbound.stall_timeout_s = self._options.stall_timeout_s
        if not outbound.start():
            sock.close()
            raise Unavailable("the transport is closed")
        self._outbound = [*(o for o in self._outbound if not o.gone.is_set()), outbound]
        return outbound

    def poll(self) -> list[Completion]:
        return self._completions.poll()

    def open(self, transfer_id: int, source_incarnation: str, blocks: Sequence[int]) -> None:
        self._target.permits.open(transfer_id, source_incarnation, blocks)

    def fence(self, transfer_id: int, source_incarnation: str) -> bool:
        self._target.permits.end(transfer_id, source_incarnation)
        return True

    def set_waker(self, waker: Callable[[], None]) -> None:
        self._completions.set_waker(waker)

    def close(self) -> None:
        deadline = time.monotonic() + self._options.linger_s
        for outbound in self._outbound:
            outbound.close()
        for outbound in self._outbound:
            outbound.gone.wait(max(0.0, deadline - time.monotonic()))
        self._outbound = []
        self._target.permits.end_all()
        self._loop.stop("the transport was closed")


class _Listener:
    def __init__(self, loop: Loop, sock: socket.socket, target: Target, options: TcpOptions) -> None:
        self._loop = loop
        self._sock = sock
        self._target = target
        self._options = options
        self._inbound: set[Inbound] = set()

    def fileno(self) -> int:
        return self._sock.fileno()

    def ready(self, mask: int) -> None:
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as exc:  # out of file descriptors: the peer times out; do not spin meanwhile
            log.error("cannot accept a kv connection: %s", exc.strerror)
            time.sleep(0.05)
            return
        if len(self._inbound) >= self._options.max_inbound:
            log.warning("kv connection from %s refused: there are %d", address[0], len(self._inbound))
            abort(sock)
            return
        try:
            tune(sock, self._options.stall_timeout_s)
            name = f"{address[0]}:{address[1]}"
            self._inbound.add(Inbound(self._loop, sock, name, self._target, self._inbound.discard))
        except OSError:  # reset already
            sock.close()

    def due_s(self) -> float:
        return math.inf

    def overdue(self) -> None: ...

    def fail(self, error: str) -> None:
        self._sock.close()
