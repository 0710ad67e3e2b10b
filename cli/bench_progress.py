"""How far a measurement is, on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.bench.load.generator import Log
from baton.bench.load.record import Outcome
from baton.bench.load.spread import spread

REFRESH_PER_S = 4  # drawing takes time from the generator


class Progressing:
    """A bar per run, the last one moving."""

    def __init__(self, console: Console, duration_s: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=REFRESH_PER_S,
            disable=not console.is_terminal,
        )
        self._duration_s = duration_s
        self._log: Log | None = None
        self._task: TaskID | None = None

    def show(self, target: str, rate: float, requests: int, log: Log, now_s: float) -> None:
        if self._progress.disable:
            return
        if log is not self._log:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._log = log
            self._task = self._progress.add_task(
                f"{target} at {rate:.3g}/s", total=self._duration_s, state=""
            )
        assert self._task is not None
        self._progress.update(self._task, completed=min(now_s, self._duration_s), state=_state(log, requests))

    def stop(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _state(log: Log, requests: int) -> str:
    sent = len(log.records)
    waiting = sum(record.outcome is Outcome.UNFINISHED for record in log.records)
    bad = sum(record.outcome not in (Outcome.OK, Outcome.UNFINISHED) for record in log.records)
    first = spread(record.ttft_s for record in log.records).p50
    said = f"{sent}/{requests} sent, {waiting} open"
    said += f", {bad} failed" if bad else ""
    return said if first is None else f"{said}, TTFT {first:.2f} s"
