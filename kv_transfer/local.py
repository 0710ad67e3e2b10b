"""Writes into memory that this process can reach itself: one thread per transport that copies."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from baton.kv_transfer.completions import Completions
from baton.kv_transfer.plan import CopyOp, op_bytes, plan, split
from baton.kv_transfer.pool_view import PoolView, copy
from baton.kv_transfer.writes import Completion, Outcome, Write

# Cancel and fence are looked at between pieces: 4 MiB take about 0.4 ms to copy; quantising is slower.
PIECE_BYTES = 4 << 20
CONVERTED_PIECE_BYTES = 256 << 10
MAX_QUEUED = 1 << 16

# Held around each piece, and once more before a write counts as applied: (transfer, first block, count) to
# "" if it may land now, or why not.
Gate = Callable[[int, int, int], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class Route:
    """From where to where, and under whose permission."""

    source: PoolView
    target: PoolView
    gate: Gate


@dataclass(eq=False)
class _Job:
    write: Write
    connection: LocalConnection
    route: Route
    ops: list[CopyOp]
    stop: Outcome | None = None  # set by cancel or close: what it then ends as


class CopyThread:
    """Carries out jobs in order. Each ends exactly once, after its last byte was written."""

    def __init__(self, name: str, completions: Completions) -> None:
        self.completions = completions
        self._wake = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: _Job) -> str:
        """ "" or why not."""
        with self._wake:
            if self._stopped:
                return "the transport is closed"
            if len(self._jobs) >= MAX_QUEUED:
                return f"{MAX_QUEUED} writes are queued already"
            self._jobs.append(job)
            self._wake.notify()
        return ""

    def drop(self, chosen: Callable[[_Job], bool], outcome: Outcome, error: str) -> None:
        """End the queued jobs at once, the running one before its next piece."""
        with self._wake:
            dropped = [job for job in self._jobs if chosen(job)]
            self._jobs = deque(job for job in self._jobs if not chosen(job))
            if self._running is not None and chosen(self._running):
                self._running.stop = outcome
        for job in dropped:
            self.completions.end(job.write, outcome, error)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self.drop(lambda job: True, Outcome.FAILED, "the transport was closed")
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._running = None
                while not self._jobs:
                    if self._stopped:
                        return
                    self._wake.wait()
                job = self._running = self._jobs.popleft()
            self.completions.push(self._carry_out(job))
            del job  # it holds the peer's memory

    def _carry_out(self, job: _Job) -> Completion:
        write, route, started, done = job.write, job.route, time.perf_counter(), 0
        layout = route.target.layout
        limit = PIECE_BYTES if layout.dtype == route.source.layout.dtype else CONVERTED_PIECE_BYTES
        try:
            for op in job.ops:
                for piece in split(op, layout, layout.dtype, limit):
                    if job.stop is not None:
                        return _ended(write, job.stop, done)
                    with route.gate(write.transfer_id, piece.dst_block, piece.blocks) as error:
                        if error:
                            return _ended(write, Outcome.FAILED, done, error)
                        copy(route.source, route.target, piece)
                    done += op_bytes(piece, layout, layout.dtype)
            with route.gate(write.transfer_id, 0, 0) as error:
                outcome = Outcome.FAILED if error else Outcome.APPLIED
        except Exception as exc:  # whatever it was, the write must end
            return _ended(write, Outcome.FAILED, done, f"{type(exc).__name__}: {exc}")
        seconds = time.perf_counter() - started
        return Completion(write.write_id, write.transfer_id, outcome, done, seconds, error)


def _ended(write: Write, outcome: Outcome, done: int, error: str = "") -> Completion:
    return Completion(write.write_id, write.transfer_id, outcome, done, error=error)


class LocalConnection:
    """Source side of a transport whose copy thread reaches both pools."""

    def __init__(self, thread: CopyThread, route: Route) -> None:
        self._thread = thread
        self._route: Route | None = route  # None: closed

    def submit(self, write: Write) -> None:
        error, route = "the connection is closed", self._route
        if route is not None:
            try:
                job = _Job(write, self, route, plan(route.source.layout, route.target.layout, write))
                error = self._thread.add(job)
            except (ValueError, IndexError, TypeError) as exc:
                error = f"bad write: {exc}"
        if error:
            self._thread.completions.end(write, Outcome.FAILED, error)

    def cancel(self, transfer_id: int) -> None:
        self._thread.drop(
            lambda job: job.connection is self and job.write.transfer_id == transfer_id,
            Outcome.CANCELLED,
            "",
        )

    @property
    def broken(self) -> bool:
        return self._route is None

    def close(self) -> None:
        self._route = None
        self._thread.drop(lambda job: job.connection is self, Outcome.FAILED, "the connection was closed")
