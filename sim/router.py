"""The router process: drives a RouterMachine as `router.driver` does, over modelled streams to nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baton.core.errors import BatonError, Unavailable
from baton.core.load import LoadReport
from baton.router.events import (
    CancelOn,
    Complete,
    Deliver,
    Dispatch,
    Effect,
    Event,
    NodeFailed,
    NodeInfo,
    NodeJoined,
    NodeLost,
    NodeReported,
    Pair,
    Record,
    Reject,
    SetDrain,
    SetRole,
    Tick,
    TokensMade,
)
from baton.router.machine import RouterMachine
from baton.sim.clients import Clients
from baton.sim.clock import Entry
from baton.sim.hub import ROUTER, Hub

ORPHAN_PAUSE_S = 0.5

Watcher = Callable[[float, Event, list[Effect]], None]


class SimRouter:
    """watch: sees every event with its effects. members: incarnations that have a stream here, by node id."""

    def __init__(
        self, hub: Hub, machine: RouterMachine, clients: Clients, watch: Watcher | None = None
    ) -> None:
        self.machine = machine
        self.members: dict[str, str] = {}
        self._hub = hub
        self._clients = clients
        self._watch = watch
        self._timer: Entry | None = None
        self._timer_s = 0.0
        self._orphans: dict[tuple[str, int], float] = {}
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Deliver: clients.deliver,
            Dispatch: self._dispatch,
            CancelOn: self._cancel_on,
            Complete: clients.complete,
            Reject: clients.reject,
            SetRole: lambda effect: self._call(effect.node_id, "set_role", effect.role),
            SetDrain: lambda effect: self._call(effect.node_id, "set_draining", effect.draining),
            Pair: lambda effect: None,
            Record: lambda effect: None,
        }

    def post(self, event: Event) -> None:
        now = self._hub.clock.now
        effects = self.machine.step(now, event)
        if self._watch is not None:
            self._watch(now, event, effects)
        carry_out = self._carry_out
        for effect in effects:
            carry_out[type(effect)](effect)
        wakeup = self.machine.next_wakeup()
        if wakeup is not None and (self._timer is None or wakeup < self._timer_s):
            self._hub.clock.cancel(self._timer)
            self._timer_s = max(wakeup, now)
            self._timer = self._hub.clock.at(wakeup, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    # ---- what nodes say ----------------------------------------------------------------------------------

    def joined(self, info: NodeInfo) -> None:
        self.members[info.node_id] = info.incarnation
        self.post(NodeJoined(info))

    def reported(self, node_id: str, incarnation: str, load: LoadReport) -> None:
        if self.members.get(node_id) == incarnation:
            self.post(NodeReported(node_id, incarnation, load))

    def events(self, node_id: str, incarnation: str, events: Sequence[Event]) -> None:
        if self.members.get(node_id) != incarnation:
            return
        for event in events:
            if isinstance(event, TokensMade) and event.request_id not in self._clients.open:
                self._end_orphan(node_id, event.request_id, event.attempt)
            self.post(event)

    def lost(self, node_id: str, incarnation: str, reason: str) -> None:
        if self.members.get(node_id) == incarnation:
            del self.members[node_id]
            self.post(NodeLost(node_id, incarnation, reason))

    def _end_orphan(self, node_id: str, request_id: str, attempt: int) -> None:
        """It makes tokens for nobody: where an abort reached it before the hand-off did."""
        now, key = self._hub.clock.now, (request_id, attempt)
        if now - self._orphans.get(key, -ORPHAN_PAUSE_S) >= ORPHAN_PAUSE_S:
            self._orphans[key] = now
            self._call(node_id, "abort", key)

    # ---- what it says to nodes ---------------------------------------------------------------------------

    def _dispatch(self, effect: Dispatch) -> None:
        prefill, decode = effect.prefill_node, effect.decode_node
        incarnation, target = self.members.get(prefill), self.members.get(decode)
        if incarnation is None or target is None:
            gone = prefill if incarnation is None else decode
            self._refused(effect, gone, Unavailable(f"node {gone} has gone"))
            return
        lender = None if effect.fetch is None else self.members.get(effect.fetch.node_id)
        self._hub.network.send(ROUTER, prefill, self._take, effect, incarnation, target, lender)

    def _take(self, effect: Dispatch, incarnation: str, target: str, lender: str | None) -> None:
        """At the prefill node's host. lender: incarnation of the node to fetch from, if it is still there."""
        node = self._hub.nodes.get(effect.prefill_node)
        error: BatonError = Unavailable(f"node {effect.prefill_node} cannot be reached")
        if node is not None and node.incarnation == incarnation:
            try:
                fetch = effect.fetch if lender is not None else None
                node.prefill(effect.request, effect.decode_node, target, fetch, lender or "")
                return
            except BatonError as why:
                error = why
        self._hub.network.send(effect.prefill_node, ROUTER, self._refused, effect, effect.prefill_node, error)

    def _refused(self, effect: Dispatch, node_id: str, error: BatonError) -> None:
        self.post(NodeFailed(effect.request.id, effect.request.attempt, node_id, error))

    def _cancel_on(self, effect: CancelOn) -> None:
        self._call(effect.node_id, "abort", (effect.request_id, effect.attempt))

    def _call(self, node_id: str, what: str, *arguments: Any) -> None:
        incarnation = self.members.get(node_id)
        if incarnation is not None:
            self._hub.network.send(ROUTER, node_id, self._called, node_id, incarnation, what, arguments)

    def _called(self, node_id: str, incarnation: str, what: str, arguments: tuple[Any, ...]) -> None:
        node = self._hub.nodes.get(node_id)
        if node is not None and node.incarnation == incarnation:
            getattr(node, what)(*arguments)
