"""When a node tells the router of its load: after a change, but not more often than every `report_s`; and
every third of a lease while nothing changes, as `node.announce` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from baton.sim.clock import Entry
from baton.sim.engine import Engine
from baton.sim.hub import Hub

KEEP_SAMPLES = 64

Transfers = tuple[tuple[int, float], ...]


class Reporter:
    """send: gets (bytes, seconds) of the KV writes since the last report."""

    def __init__(self, hub: Hub, engine: Engine, send: Callable[[Transfers], None]) -> None:
        self._hub = hub
        self._engine = engine
        self._send = send
        self._transfers: deque[tuple[int, float]] = deque(maxlen=KEEP_SAMPLES)
        self._last_s = hub.clock.now
        self._timer: Entry | None = None
        self._timer_s = 0.0
        self._stopped = False
        self._arm(hub.clock.now + hub.beat_s)

    def changed(self) -> None:
        """There is something new to say."""
        due_s = self._last_s + self._hub.cluster.report_s
        if due_s < self._timer_s:
            self._arm(due_s)

    def transferred(self, payload_bytes: int, seconds: float) -> None:
        self._transfers.append((payload_bytes, seconds))

    def stop(self) -> None:
        self._stopped = True
        self._hub.clock.cancel(self._timer)

    def _arm(self, when: float) -> None:
        clock = self._hub.clock
        clock.cancel(self._timer)
        self._timer_s = max(when, clock.now)
        self._timer = clock.at(when, self._fire)

    def _fire(self) -> None:
        if self._stopped:
            return
        self._engine.settle()
        transfers = tuple(self._transfers)
        self._transfers.clear()
        self._last_s = self._hub.clock.now
        self._send(transfers)
        pause_s = self._hub.cluster.report_s if self._engine.running else self._hub.beat_s
        self._arm(self._last_s + pause_s)
