"""The one thread that owns a node's schedulers, block pool and model.

Commands come in through a mailbox, effects go out to the event loop once per turn, in order. A turn:
commands, schedule, clear the blocks that were allocated, hand out the effects, run the batch. So a ticket
never leaves before its blocks are clean, and the loop learns of everything decided before a long step, not
after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from baton.core.batch import Batch
from baton.engine.runner import ModelRunner
from baton.node.commands import Command
from baton.node.core import NodeCore, Out

log = structlog.get_logger(__name__)

IDLE_WAIT_S = 1.0


class EngineThread:
    """Runs a NodeCore on a ModelRunner. `emit` is called on the engine thread with each turn's effects. cpu:
    where the thread stays; None: anywhere."""

    def __init__(
        self,
        core: NodeCore,
        runner: ModelRunner,
        emit: Callable[[Sequence[Out]], None],
        cpu: int | None = None,
    ) -> None:
        self._core = core
        self._runner = runner
        self._emit = emit
        self._cpu = cpu
        self._mail: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._stuck = False  # there is work, but none can run before something changes
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self.fault: BaseException | None = None
        self.turn_started_s: float | None = None  # monotonic; None while waiting for work

    @property
    def block_size(self) -> int:
        return self._core.kv.block_size

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        """From any thread. Order is kept."""
        with self._wake:
            self._mail.append(command)
            self._wake.notify()

    def stop(self, timeout_s: float) -> bool:
        """Ask for the end after the current turn; False if it did not come in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.fault is None

    def busy_s(self) -> float:
        """Seconds the current turn has taken so far; 0 while waiting."""
        started = self.turn_started_s
        return 0.0 if started is None else time.monotonic() - started

    def _main(self) -> None:
        try:
            if self._cpu is not None:
                os.sched_setaffinity(0, {self._cpu})  # of this thread alone
            while not self._stopping:
                self._turn(self._take())
        except BaseException as error:
            self.fault = error
            log.exception("the engine stopped on an error")
            self._emit([error])
        finally:
            self.turn_started_s = None

    def _take(self) -> list[Command]:
        """All waiting commands. Waits when nothing can run: for mail, or until the core wants to be woken."""
        with self._wake:
            if not self._mail and not self._stopping and (self._stuck or not self._core.has_work):
                self.turn_started_s = None
                self._wake.wait(self._idle_s())
            commands = list(self._mail)
            self._mail.clear()
            self.turn_started_s = time.monotonic()
        return commands

    def _idle_s(self) -> float:
        wakeup = self._core.next_wakeup()
        return IDLE_WAIT_S if wakeup is None else min(IDLE_WAIT_S, max(0.0, wakeup - time.monotonic()))

    def _turn(self, commands: Sequence[Command]) -> None:
        core = self._core
        now = time.monotonic()
        for command in commands:
            core.handle(now, command)
        core.tick(now)
        rows = core.schedule(now)
        dirty = core.take_dirty()
        if dirty:
            self._runner.run(Batch(rows=(), clear=dirty))
        self._flush()
        self._stuck = not rows
        if rows:
            output = self._runner.run(Batch(rows=rows, shared=core.shared()))
            core.complete(time.monotonic(), output)
            self._flush()

    def _flush(self) -> None:
        outs = self._core.drain()
        if outs:
            self._emit(outs)
