"""Carries out what the RouterMachine decides: the only place where its effects become actions.

One event at a time, its effects in the order given, all on one event loop and without awaiting: what takes
time is started here and comes back as another event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from baton.core.errors import BatonError, InternalError, Unavailable
from baton.core.request import FinishReason, Request
from baton.router.events import (
    Arrived,
    Cancelled,
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    Effect,
    Event,
    NodeFailed,
    OperatorDrain,
    OperatorRole,
    Outcome,
    Pair,
    Record,
    Reject,
    SetDrain,
    SetRole,
    Tick,
)
from baton.router.machine import RouterMachine
from baton.runtime.clock import Clock, monotonic_s

log = structlog.get_logger(__name__)


class Outlet(Protocol):
    """Where one request's tokens and end go. Must not block; must not raise."""

    def deliver(self, effect: Deliver) -> None: ...

    def complete(self, effect: Complete) -> None: ...

    def reject(self, effect: Reject) -> None: ...


class NodePort(Protocol):
    """The way to one node. None of these blocks; a failed dispatch comes back as NodeFailed."""

    def dispatch(self, effect: Dispatch, decode: NodePort, lender: NodePort | None = None) -> None: ...

    def cancel(self, request_id: str, attempt: int) -> None: ...

    def set_role(self, effect: SetRole) -> None: ...

    def set_drain(self, effect: SetDrain) -> None: ...


class Driver:
    """`machine` with its clock, timer, waiting clients (by request id) and nodes (by node id).

    on_event sees every (now, event) before the machine does; on_record the machine's Records; on_pair its
    Pairs; on_step runs after each burst of events.
    """

    def __init__(self, machine: RouterMachine, clock: Clock = monotonic_s) -> None:
        self.machine = machine
        self.now = clock
        self.ports: dict[str, Any] = {}
        self.on_event: Callable[[float, Event], None] | None = None
        self.on_record: Callable[[Record], None] = lambda record: None
        self.on_pair: Callable[[Pair], None] = lambda pair: None
        self.on_step: Callable[[], None] = lambda: None
        self.idle = asyncio.Event()  # set while no client waits
        self.idle.set()
        self._outlets: dict[str, Outlet] = {}
        self._events: deque[Event] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._carry_out: dict[type[Any], Callable[[Any], None]] = {
            Deliver: self._deliver,
            Dispatch: self._dispatch,
            CancelOn: self._cancel_on,
            Complete: self._complete,
            Reject: self._reject,
            SetRole: lambda effect: self._to_node(effect, "set_role"),
            SetDrain: lambda effect: self._to_node(effect, "set_drain"),
            Pair: lambda effect: self.on_pair(effect),
            Record: lambda effect: self.on_record(effect),
        }

    @property
    def open_requests(self) -> int:
        return len(self._outlets)

    def knows(self, request_id: str) -> bool:
        """Whether a client still waits for it."""
        return request_id in self._outlets

    def submit(self, request: Request, deadline_s: float | None, outlet: Outlet) -> None:
        """Hand a validated request over; everything further comes through `outlet`."""
        self._outlets[request.id] = outlet
        self.idle.clear()
        self.post(Arrived(request, deadline_s))

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The client went away, or (STOP) its stop string was found. Unknown ids are no error."""
        if request_id in self._outlets:
            self.post(Cancelled(request_id, reason))

    def abandon_all(self, error: BatonError) -> None:
        """End every open request with `error`: this process stops."""
        for request_id in list(self._outlets):
            self._break_off(request_id, error)

    def post(self, event: Event) -> None:
        self._events.append(event)
        self._drain()

    def post_all(self, events: Iterable[Event]) -> None:
        self._events.extend(events)
        self._drain()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drain(self) -> None:
        if self._busy:
            return  # called from an effect: the loop below takes it next
        self._busy = True
        events, carry_out = self._events, self._carry_out
        try:
            while events:
                for effect in self._step(events.popleft()):
                    carry_out[type(effect)](effect)
        finally:
            self._busy = False
        self._arm()
        self.on_step()

    def _step(self, event: Event) -> list[Effect]:
        now = self.now()
        if self.on_event is not None:
            self.on_event(now, event)
        try:
            return self.machine.step(now, event)
        except Exception as error:
            if isinstance(event, OperatorDrain | OperatorRole) and isinstance(error, BatonError):
                raise  # the operator's mistake: whoever posted it says so
            # The machine changes nothing when it raises, so others can go on; this one cannot.
            log.exception("the machine refused an event", event_kind=type(event).__name__)
            if isinstance(event, Arrived):
                outcome = Outcome(arrived_s=now, ended_s=now)
                self._reject(Reject(event.request.id, InternalError("internal error"), outcome))
            return []

    def _arm(self) -> None:
        """Wake at the machine's next date. A timer that is too early is left: it costs one idle Tick."""
        wakeup = self.machine.next_wakeup()
        if wakeup is None or (self._timer is not None and self._timer_at <= wakeup):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        delay_s = max(0.0, wakeup - self.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    def _deliver(self, effect: Deliver) -> None:
        outlet = self._outlets.get(effect.request_id)
        if outlet is None:
            return
        try:
            outlet.deliver(effect)
        except Exception:  # its own text's fault: the effects of others must not be lost with it
            log.exception("a client's stream could not take its tokens", request=effect.request_id)
            self._break_off(effect.request_id, InternalError("internal error"))

    def _break_off(self, request_id: str, error: BatonError) -> None:
        """Tell the client now, and the machine: what that says of it then reaches nobody."""
        now = self.now()
        self._reject(Reject(request_id, error, Outcome(arrived_s=now, ended_s=now)))
        self.post(Cancelled(request_id))

    def _complete(self, effect: Complete) -> None:
        outlet = self._forget(effect.request_id)
        if outlet is not None:
            outlet.complete(effect)

    def _reject(self, effect: Reject) -> None:
        outlet = self._forget(effect.request_id)
        if outlet is not None:
            outlet.reject(effect)

    def _forget(self, request_id: str) -> Outlet | None:
        outlet = self._outlets.pop(request_id, None)
        if not self._outlets:
            self.idle.set()
        return outlet

    def _dispatch(self, effect: Dispatch) -> None:
        prefill, decode = self.ports.get(effect.prefill_node), self.ports.get(effect.decode_node)
        if prefill is not None and decode is not None:
            fetch = effect.fetch
            prefill.dispatch(effect, decode, None if fetch is None else self.ports.get(fetch.node_id))
            return
        gone = effect.prefill_node if prefill is None else effect.decode_node
        error = Unavailable(f"node {gone} has gone")
        self.post(NodeFailed(effect.request.id, effect.request.attempt, gone, error))

    def _cancel_on(self, effect: CancelOn) -> None:
        port = self.ports.get(effect.node_id)
        if port is not None:  # a node that has gone has ended everything with it
            port.cancel(effect.request_id, effect.attempt)

    def _to_node(self, effect: SetRole | SetDrain, action: str) -> None:
        port = self.ports.get(effect.node_id)
        if port is not None:
            getattr(port, action)(effect)
