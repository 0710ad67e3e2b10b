"""The router's event log: every `(now, event)` as a line of JSON, and its replay.

A machine is a function of its configuration and its events, so the log *is* the run: replaying it gives the
identical effects. The first line holds the configuration. Off unless asked for; bounded in bytes: at the
limit recording stops (what was written stays replayable, which a log that drops its head would not).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from baton.core.errors import BatonError
from baton.router.event_codec import BadEvent, decode, decode_event, encode, encode_event
from baton.router.events import Effect, Event
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig

VERSION = 1


class EventLog:
    """Writes one log. `append` before the machine's step, so that the event that broke it is there."""

    def __init__(self, path: Path, config: RouterConfig, max_bytes: int = 1 << 30) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1 << 16)
        self._left = max_bytes
        self._write({"baton_event_log": VERSION, "config": encode(config)})

    @property
    def full(self) -> bool:
        return self._left <= 0

    def append(self, now: float, event: Event) -> None:
        if self._left > 0:
            self._write([now, encode_event(event)])

    def _write(self, value: object) -> None:
        line = json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
        if len(line) > self._left:
            self._left = 0
            return
        self._left -= len(line)
        self._file.write(line)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> tuple[RouterConfig, Iterator[tuple[float, Event]]]:
    """Configuration and events of a log. BadEvent: not such a log. A torn last line ends it."""
    lines = _lines(path)
    head = next(lines, None)
    if not isinstance(head, dict) or head.get("baton_event_log") != VERSION:
        raise BadEvent(f"{path} is not an event log of version {VERSION}")
    config: RouterConfig = decode(RouterConfig, head.get("config"))
    return config, ((float(now), decode_event(value)) for now, value in lines)


def replay(path: Path) -> Iterator[tuple[float, Event, list[Effect]]]:
    """Run a fresh machine over a log: what it did, step by step.

    An event that the machine refuses (it raised then, too) has no effects.
    """
    config, events = read(path)
    machine = RouterMachine(config)
    for now, event in events:
        try:
            effects = machine.step(now, event)
        except BatonError:
            effects = []
        yield now, event, effects


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)
