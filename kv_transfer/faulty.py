"""A transport that misbehaves on purpose, by a seeded script, around any other. The contract still holds.

What each fault stands for: DROP, a message that never arrived (the write fails after a while, nothing
landed); DELAY, a slow link (it is submitted later); TRUNCATE, a link that broke half way (a prefix lands, the
write fails); DUPLICATE, a retransmission (everything lands twice).
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from baton.kv_transfer.api import Connection, Endpoint, KvTransport, Peer, Pool
from baton.kv_transfer.completions import Completions
from baton.kv_transfer.writes import Completion, Outcome, Write


class Fault(Enum):
    NONE = "none"
    DROP = "drop"
    DELAY = "delay"
    TRUNCATE = "truncate"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of writes that suffer each fault (together at most 1). The n-th write's is a function of
    (seed, n)."""

    seed: int = 0
    drop: float = 0.0
    delay: float = 0.0
    truncate: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.02

    def of(self, n: int) -> Fault:
        u = random.Random(f"{self.seed}:{n}").random()
        for fault, share in (
            (Fault.DROP, self.drop),
            (Fault.DELAY, self.delay),
            (Fault.TRUNCATE, self.truncate),
            (Fault.DUPLICATE, self.duplicate),
        ):
            if u < share:
                return fault
            u -= share
        return Fault.NONE


@dataclass(eq=False)
class _Open:
    """A write of the caller's, and how many of the inner transport's stand for it."""

    write: Write
    fault: Fault
    left: int
    worst: Completion | None = None


class FaultyTransport:
    def __init__(self, inner: KvTransport, faults: Faults) -> None:
        self.kind = inner.kind
        self.faults = faults
        self._inner = inner
        self._completions = Completions()
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._timers: dict[threading.Timer, tuple[_FaultyConnection, Write]] = {}
        self._ids = itertools.count(1)
        self._writes = itertools.count()

    def register(self, pool: Pool) -> None:
        self._inner.register(pool)

    def describe(self) -> Endpoint:
        return self._inner.describe()

    def connect(self, peer: Peer) -> Connection:
        return _FaultyConnection(self, self._inner.connect(peer))

    def open(self, transfer_id: int, source_incarnation: str, blocks: Sequence[int]) -> None:
        self._inner.open(transfer_id, source_incarnation, blocks)

    def fence(self, transfer_id: int, source_incarnation: str) -> bool:
        return self._inner.fence(transfer_id, source_incarnation)

    def set_waker(self, waker: Callable[[], None]) -> None:
        self._completions.set_waker(waker)
        self._inner.set_waker(waker)

    def poll(self) -> list[Completion]:
        for completion in self._inner.poll():
            with self._lock:
                entry = self._open.pop(completion.write_id)
                entry.left -= 1
                if entry.worst is None or entry.worst.outcome is Outcome.APPLIED:
                    entry.worst = completion
                if entry.left:
                    continue
            self._completions.push(_translate(entry))
        return self._completions.poll()

    def close(self) -> None:
        _join(self.stop_timers(lambda connection, write: True, Outcome.FAILED, "the transport was closed"))
        self._inner.close()

    # -- for connections

    def submit(self, connection: _FaultyConnection, write: Write) -> None:
        fault = self.faults.of(next(self._writes))
        if fault in (Fault.DROP, Fault.DELAY):
            self._later(connection, write, fault)
        else:
            self.pass_on(connection, write, fault)

    def pass_on(self, connection: _FaultyConnection, write: Write, fault: Fault) -> None:
        copies = 2 if fault is Fault.DUPLICATE else 1
        entry = _Open(write, fault, copies)
        sent = replace(write, end=(write.start + write.end) // 2) if fault is Fault.TRUNCATE else write
        for _ in range(copies):
            with self._lock:
                inner_id = next(self._ids)
                self._open[inner_id] = entry
            connection.inner.submit(replace(sent, write_id=inner_id))

    def _later(self, connection: _FaultyConnection, write: Write, fault: Fault) -> None:
        def fire() -> None:
            with connection.lock:  # a cancel comes either before or after this, never half way
                with self._lock:
                    if self._timers.pop(timer, None) is None:
                        return
                if fault is Fault.DELAY:
                    self.pass_on(connection, write, fault)
                    return
            self._completions.end(write, Outcome.FAILED, "dropped on purpose")

        timer = threading.Timer(self.faults.delay_s, fire)
        timer.daemon = True
        with self._lock:
            self._timers[timer] = (connection, write)
        timer.start()

    def stop_timers(
        self, chosen: Callable[[_FaultyConnection, Write], bool], outcome: Outcome, error: str = ""
    ) -> list[threading.Timer]:
        """End the writes that wait; returns threads to join when no lock is held."""
        with self._lock:
            stopped = {timer: held for timer, held in self._timers.items() if chosen(*held)}
            for timer in stopped:
                del self._timers[timer]
        for timer, (_, write) in stopped.items():
            timer.cancel()
            self._completions.end(write, outcome, error)
        return list(stopped)


def _translate(entry: _Open) -> Completion:
    worst = entry.worst
    assert worst is not None  # set by the completion that brought `left` to 0
    ended = replace(worst, write_id=entry.write.write_id)
    if entry.fault is Fault.TRUNCATE and ended.outcome is Outcome.APPLIED:
        return replace(ended, outcome=Outcome.FAILED, error="truncated on purpose")
    return ended


class _FaultyConnection:
    def __init__(self, owner: FaultyTransport, inner: Connection) -> None:
        self.inner = inner
        self.lock = threading.RLock()
        self._owner = owner

    def submit(self, write: Write) -> None:
        self._owner.submit(self, write)

    def cancel(self, transfer_id: int) -> None:
        def mine(connection: _FaultyConnection, write: Write) -> bool:
            return connection is self and write.transfer_id == transfer_id

        with self.lock:
            stopped = self._owner.stop_timers(mine, Outcome.CANCELLED)
            self.inner.cancel(transfer_id)
        _join(stopped)

    @property
    def broken(self) -> bool:
        return self.inner.broken

    def close(self) -> None:
        with self.lock:
            stopped = self._owner.stop_timers(
                lambda connection, write: connection is self, Outcome.FAILED, "the connection was closed"
            )
            self.inner.close()
        _join(stopped)


def _join(timers: list[threading.Timer]) -> None:
    for timer in timers:
        timer.join()
