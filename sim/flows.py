"""Bulk transfers that share links: every node sends and receives at a rate of its own, in equal shares.

A transfer moves at the lesser of its share at the sender and its share at the receiver. What one that is held
back at one end leaves unused at the other is not given to others, so rates are a little below max-min fair
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.sim.clock import Clock, Entry


@dataclass(slots=True, eq=False)
class Flow:
    """left: bytes to go as of `since_s`. done: called once, with whether all of it went."""

    source: str
    target: str
    left: float
    since_s: float
    done: Callable[[bool], None]
    rate: float = 0.0
    timer: Entry | None = None


class Flows:
    """rates: bytes per second by node, the same in both directions."""

    def __init__(self, clock: Clock) -> None:
        self.rates: dict[str, float] = {}
        self._clock = clock
        self._sending: dict[str, dict[Flow, None]] = {}
        self._receiving: dict[str, dict[Flow, None]] = {}

    def __len__(self) -> int:
        return sum(len(flows) for flows in self._sending.values())

    def start(self, source: str, target: str, payload_bytes: float, done: Callable[[bool], None]) -> Flow:
        flow = Flow(source, target, payload_bytes, self._clock.now, done)
        self._sending.setdefault(source, {})[flow] = None
        self._receiving.setdefault(target, {})[flow] = None
        self._share(source, target)
        return flow

    def stop(self, flow: Flow) -> None:
        """It ends where it is."""
        if flow in self._sending.get(flow.source, ()):
            self._end(flow, whole=False)

    def stop_all(self, node: str) -> None:
        """Nothing moves to or from this node any more."""
        for flow in [*self._sending.get(node, ()), *self._receiving.get(node, ())]:
            self.stop(flow)

    def stop_between(self, one: str, other: str) -> None:
        for flow in [*self._sending.get(one, ()), *self._receiving.get(one, ())]:
            if other in (flow.source, flow.target):
                self.stop(flow)

    def _end(self, flow: Flow, *, whole: bool) -> None:
        del self._sending[flow.source][flow]
        del self._receiving[flow.target][flow]
        self._clock.cancel(flow.timer)
        flow.timer = None  # it names the flow
        self._share(flow.source, flow.target)
        flow.done(whole)

    def _share(self, source: str, target: str) -> None:
        """Rates anew for all that share an end with such a transfer."""
        sending, receiving = self._sending[source], self._receiving[target]
        for flow in sending:
            self._pace(flow)
        for flow in receiving:
            if flow.source != source:
                self._pace(flow)

    def _pace(self, flow: Flow) -> None:
        now = self._clock.now
        rate = min(
            self.rates[flow.source] / len(self._sending[flow.source]),
            self.rates[flow.target] / len(self._receiving[flow.target]),
        )
        if rate == flow.rate:
            return
        flow.left = max(0.0, flow.left - flow.rate * (now - flow.since_s))
        flow.since_s, flow.rate = now, rate
        self._clock.cancel(flow.timer)
        flow.timer = self._clock.at(now + flow.left / rate, self._arrived, flow)

    def _arrived(self, flow: Flow) -> None:
        self._end(flow, whole=True)
