"""The open-loop generator: requests go out when they are due, whatever became of those before.

A generator that waits for answers slows down with the server and so measures too little (coordinated
omission). Here the time of every request is fixed before the run, latencies count from that time, and the
generator's own lateness is measured beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from baton.bench.load.plan import Plan, Shot
from baton.bench.load.record import Outcome, Record
from baton.bench.load.target import Call, Target

AHEAD = 128  # requests prepared before they are due
BUSY_S = 0.005  # nothing is prepared in so short a time before one is due
PROBE_S = 0.02
WATCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """timeout_s: what a client waits for its whole answer. drain_s: how long open requests are waited for
    once all are sent."""

    timeout_s: float = 600.0
    drain_s: float = 60.0


@dataclass(slots=True)
class Log:
    """One run. lags_s: how late the event loop woke up at regular moments: what stamps may be late by.
    stopped_s: when it was ended early; None: it was not."""

    records: list[Record] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    stopped_s: float | None = None


Watch = Callable[[Log, float], bool]
"""Looks at a run so far and the time; True ends it."""


async def fire(target: Target, plan: Plan, limits: Limits, watch: Watch = lambda log, now_s: False) -> Log:
    """Send all shots and wait for what comes. `watch` is asked ten times a second."""
    return await _Run(target, plan, limits, watch).run()


class _Run:
    def __init__(self, target: Target, plan: Plan, limits: Limits, watch: Watch) -> None:
        self._target = target
        self._plan = plan
        self._limits = limits
        self._watch = watch
        self._log = Log()
        self._open: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._begun = 0.0

    def _now_s(self) -> float:
        return time.perf_counter() - self._begun

    async def _until(self, at_s: float) -> None:
        """Event loops may wake a little early."""
        while (left_s := at_s - self._now_s()) > 0:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(left_s)

    async def run(self) -> Log:
        ready, rest = deque[tuple[Shot, Call]](), iter(self._plan.shots)
        await self._prepare(ready, rest, lambda: True)
        self._begun = time.perf_counter()
        side = [asyncio.create_task(self._probe())]
        sending = asyncio.create_task(self._send(ready, rest))
        side.append(asyncio.create_task(self._end_early(sending)))
        try:
            await asyncio.wait([sending])
            if self._open and not sending.cancelled():
                await asyncio.wait(self._open, timeout=self._limits.drain_s)
        finally:
            over = [task for task in (sending, *side) if task.done() and not task.cancelled()]
            await _cancel([sending, *side, *self._open])
        for task in over:
            task.result()  # its error, should it have one
        if self._broken is not None:
            raise self._broken
        return self._log

    async def _send(self, ready: deque[tuple[Shot, Call]], rest: Iterator[Shot]) -> None:
        while ready:
            shot, call = ready.popleft()
            await self._until(shot.at_s)
            self._start(shot, call)
            await self._prepare(ready, rest, lambda: not ready or ready[0][0].at_s - self._now_s() > BUSY_S)

    async def _prepare(
        self, ready: deque[tuple[Shot, Call]], rest: Iterator[Shot], has_time: Callable[[], bool]
    ) -> None:
        while len(ready) < AHEAD and has_time():
            shot = next(rest, None)
            if shot is None:
                return
            ready.append((shot, self._target.prepare(shot)))
            await asyncio.sleep(0)

    def _start(self, shot: Shot, call: Call) -> None:
        record = Record(shot.number, shot.at_s, shot.prompt_tokens, shot.output_tokens, shot.slo)
        self._log.records.append(record)
        task = asyncio.create_task(self._ask(record, call))
        self._open.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()  # a mistake of ours: whatever servers do is an outcome

    async def _ask(self, record: Record, call: Call) -> None:
        record.sent_s = self._now_s()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await call(record, self._now_s)
        except TimeoutError:
            record.outcome = Outcome.TIMEOUT
            record.error = f"no whole answer within {self._limits.timeout_s:g} s"
        finally:
            record.ended_s = self._now_s()

    async def _probe(self) -> None:
        due_s = self._now_s()
        while True:
            due_s = max(due_s + PROBE_S, self._now_s())
            await self._until(due_s)
            self._log.lags_s.append(self._now_s() - due_s)

    async def _end_early(self, sending: asyncio.Task[None]) -> None:
        while not self._watch(self._log, self._now_s()):  # noqa: ASYNC110 - time matters
            await asyncio.sleep(WATCH_S)
        self._log.stopped_s = self._now_s()
        sending.cancel()
        for task in self._open:
            task.cancel()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
