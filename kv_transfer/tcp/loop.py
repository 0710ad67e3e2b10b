"""One thread that waits on all sockets of a transport. epoll itself, because `selectors` hides hang-ups."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

log = logging.getLogger(__name__)

HANG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Handler(Protocol):
    """What the loop's thread calls. Nothing else touches a handler's state."""

    def fileno(self) -> int: ...

    def ready(self, mask: int) -> None: ...

    def due_s(self) -> float:
        """When (time.monotonic) `overdue` must be called; math.inf: never."""

    def overdue(self) -> None: ...

    def fail(self, error: str) -> None:
        """Let go of everything. Idempotent."""


class Loop:
    def __init__(self, name: str) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._handlers: dict[int, Handler] = {}
        self._lock = threading.Lock()
        self._calls: deque[tuple[Handler, Callable[[], None]]] = deque()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, handler: Handler, function: Callable[[], None]) -> bool:
        """Have the loop's thread call a handler's function soon, in order. False: the loop has stopped."""
        with self._lock:
            if self._stopped:
                return False
            self._calls.append((handler, function))
            if len(self._calls) == 1:
                os.eventfd_write(self._wake, 1)
        return True

    def watch(self, handler: Handler, mask: int) -> None:
        self._epoll.register(handler.fileno(), mask)
        self._handlers[handler.fileno()] = handler

    def change(self, handler: Handler, mask: int) -> None:
        self._epoll.modify(handler.fileno(), mask)

    def forget(self, handler: Handler) -> None:
        """Call before the handler closes its file."""
        if self._handlers.pop(handler.fileno(), None) is not None:
            self._epoll.unregister(handler.fileno())

    def stop(self, error: str) -> None:
        """Carry out the calls made so far, fail every handler, end the thread. Idempotent."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._drain()
        for handler in list(self._handlers.values()):
            handler.fail(error)
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._stopped:
            due_s = min((handler.due_s() for handler in self._handlers.values()), default=float("inf"))
            wait_s = min(max(due_s - time.monotonic(), 0.0), 60.0)
            for fd, mask in self._epoll.poll(wait_s):
                if fd == self._wake:
                    self._drain()
                elif (handler := self._handlers.get(fd)) is not None:
                    self._guard(handler, partial(handler.ready, mask))
            now = time.monotonic()
            for handler in [h for h in self._handlers.values() if h.due_s() <= now]:
                self._guard(handler, handler.overdue)

    def _drain(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
            if not self._stopped:
                os.eventfd_read(self._wake)
        for handler, function in calls:
            self._guard(handler, function)

    def _guard(self, handler: Handler, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as exc:  # one connection's fault must not end the others
            log.warning("connection dropped: %s: %s", type(exc).__name__, exc)
            handler.fail(f"{type(exc).__name__}: {exc}")
