"""Where the threads of a backend leave the ends of writes for `poll`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from baton.kv_transfer.writes import Completion, Outcome, Write

log = logging.getLogger(__name__)


class Completions:
    """A queue with a waker, which is called outside the lock: it may call `poll` at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: list[Completion] = []
        self._waker: Callable[[], None] | None = None

    def set_waker(self, waker: Callable[[], None]) -> None:
        self._waker = waker

    def push(self, completion: Completion) -> None:
        with self._lock:
            self._ended.append(completion)
        self.wake()

    def wake(self) -> None:
        """There is something to look at."""
        if self._waker is not None:
            try:
                self._waker()
            except Exception:  # an event loop that is closing; whoever polls still gets everything
                log.warning("waker failed", exc_info=True)

    def end(self, write: Write, outcome: Outcome, error: str = "") -> None:
        """Push an end that moved nothing worth counting."""
        self.push(Completion(write.write_id, write.transfer_id, outcome, error=error))

    def poll(self) -> list[Completion]:
        with self._lock:
            ended, self._ended = self._ended, []
        return ended
