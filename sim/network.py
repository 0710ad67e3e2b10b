"""Messages between processes: late, in order, and held up while their ends are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from baton.sim.clock import Clock
from baton.sim.spec import NetworkSpec

Path = tuple[str, str]
MIN_RESEND_S = 1e-6


class Network:
    """Every pair of processes has one stream each way: what is sent first arrives first.

    While two processes are apart, what they send each other waits; if that takes longer than `detect_s`, who
    asked by `watch` is told that the stream broke.
    """

    def __init__(self, clock: Clock, spec: NetworkSpec, dice: Random) -> None:
        self.spec = spec
        self.delays: dict[str, float] = {}  # by sender: what its messages take longer
        self._clock = clock
        self._dice = dice
        self._last: dict[Path, float] = {}
        self._plain = spec.jitter == 0.0 and spec.loss == 0.0
        self._apart: set[Path] = set()
        self._held: dict[Path, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}

    def send(self, source: str, target: str, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action` called at the target once the message is there."""
        path = source, target
        if self._apart and path in self._apart:
            self._held.setdefault(path, []).append((action, arguments))
            return
        clock = self._clock
        if self._plain and not self.delays:
            clock.at(clock.now + self.spec.latency_s, action, *arguments)
            return
        arrives_s = max(clock.now + self._takes_s(source), self._last.get(path, 0.0))
        self._last[path] = arrives_s
        clock.at(arrives_s, action, *arguments)

    def part(self, one: Iterable[str], other: Iterable[str]) -> None:
        """No message passes between the two groups from now on."""
        pairs = [(a, b) for a in one for b in other if a != b]
        self._apart.update(pairs)
        self._apart.update((b, a) for a, b in pairs)

    def join(self) -> None:
        """All can reach all again; what waited comes through, in order."""
        self._apart.clear()
        held, self._held = self._held, {}
        for (source, target), messages in held.items():
            for action, arguments in messages:
                self.send(source, target, action, *arguments)

    def apart(self, one: str, other: str) -> bool:
        return (one, other) in self._apart

    def drop(self, one: str, other: str) -> None:
        """The stream between two processes broke: what waited on it is gone."""
        self._held.pop((one, other), None)
        self._held.pop((other, one), None)

    def _takes_s(self, source: str) -> float:
        spec, dice = self.spec, self._dice
        takes_s = spec.latency_s + self.delays.get(source, 0.0)
        if spec.jitter:
            takes_s += spec.latency_s * spec.jitter * dice.random()
        while spec.loss and dice.random() < spec.loss:
            takes_s += max(MIN_RESEND_S, spec.resend_s)
        return takes_s
