"""The router's decisions: pure, `step(now, event) -> effects`. Time comes in, work to do goes out.

                    ┌────────────── retry (after a pause) ──────────────┐
                    ▼                                                   │
    Arrived ──▶ queued ──Dispatch──▶ attempt k on (prefill, decode) ──node lost / failed
                  │ ▲                    │ Deliver ...                  │
                  │ └─ node joins, room  ▼                              ▼
                  └──────────────▶ Complete | Reject ◀── too often, or for good

A whole answer that decode made waits with its Complete for HandedOff, whose figures are part of it.

A request ends once, with the last effect that names it to the client (Records may follow). Attempts are
numbered; whatever comes from another attempt, another node or another incarnation is dropped. How many
requests a node has is never a counter: it is which live requests have their attempt there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from baton.core.errors import Code, IllegalTransition, Unavailable
from baton.core.load import LoadReport
from baton.core.request import FinishReason, Request, Slo
from baton.router import cluster, dispatch, fate, roles
from baton.router.demand import Demand
from baton.router.events import (
    Arrived,
    Cancelled,
    Effect,
    Event,
    HandedOff,
    KvChanged,
    NodeFailed,
    NodeFinished,
    NodeInfo,
    NodeJoined,
    NodeLost,
    NodeReported,
    OperatorDrain,
    OperatorRole,
    Pair,
    PrefillStarted,
    Tick,
    TokensMade,
)
from baton.router.lent import note_fetch
from baton.router.live import Attempt, Live
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.pending import Pending
from baton.router.planner import Planner
from baton.router.policy import Chooser
from baton.router.policy_latency import POLICIES
from baton.router.shortlist import pair_serves
from baton.router.state import PLAN_TIMER, REQUEST_TIMERS, State


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as operators see it. state: "up", "draining", "suspect" or "lost"; in_flight: this router's
    requests on it now; incompatible: (other node, differing items)."""

    info: NodeInfo
    load: LoadReport
    state: str
    in_flight: int
    cached_blocks: int
    incompatible: tuple[tuple[str, tuple[str, ...]], ...]
    report_age_s: float


class RouterMachine:
    """Call `step(now, Tick())` as soon as `next_wakeup()` has come. `now` never goes back."""

    def __init__(self, config: RouterConfig, policy: Chooser | None = None) -> None:
        self.config = config
        chosen = policy if policy is not None else POLICIES[config.policy](config)
        self._state = State(config, chosen, Registry(), Pending(config))
        if config.planner is not None:
            self._state.planner = Planner(config.planner)
            self._state.demand = Demand(config.planner.tau_s)
        self._handlers: dict[type, Callable[[float, Any], list[Effect]]] = {
            Arrived: self._on_arrived,
            Cancelled: self._on_cancelled,
            NodeJoined: self._on_node_joined,
            NodeReported: self._on_node_reported,
            NodeLost: self._on_node_lost,
            KvChanged: self._on_kv_changed,
            PrefillStarted: self._on_prefill_started,
            TokensMade: self._on_tokens_made,
            HandedOff: self._on_handed_off,
            NodeFinished: self._on_node_finished,
            NodeFailed: self._on_node_failed,
            OperatorDrain: self._on_operator_drain,
            OperatorRole: self._on_operator_role,
            Tick: self._on_tick,
        }

    def step(self, now: float, event: Event) -> list[Effect]:
        """Effects, to be carried out in order.

        Raises, and changes nothing: IllegalTransition for an Arrived whose id is alive, NotFound for an
        operator's event that names no known node, InvalidArgument for a registration that makes no sense.
        """
        effects = self._handlers[type(event)](now, event)
        self._state.registry.board.settle()
        return effects

    # ---- the client's side --------------------------------------------------------------------------------

    def _on_arrived(self, now: float, event: Arrived) -> list[Effect]:
        if event.request.id in self._state.live:
            raise IllegalTransition(f"request {event.request.id!r} is alive already")
        out: list[Effect] = []
        dispatch.admit(self._state, Live(self._with_targets(event.request), now, event.deadline_s), now, out)
        return out

    def _with_targets(self, request: Request) -> Request:
        """The configured targets where it brings none."""
        config, slo = self.config, request.slo
        if (slo.ttft_s or config.ttft_s) == slo.ttft_s and (slo.tpot_s or config.tpot_s) == slo.tpot_s:
            return request
        return replace(request, slo=Slo(slo.ttft_s or config.ttft_s, slo.tpot_s or config.tpot_s))

    def _on_cancelled(self, now: float, event: Cancelled) -> list[Effect]:
        live = self._state.live.get(event.request_id)
        if live is None:
            return []
        out: list[Effect] = []
        if event.reason is FinishReason.STOP:
            fate.stop(self._state, live, now, out)
        else:
            fate.cancel_attempt(self._state, live, out)
            fate.complete(self._state, live, event.reason, now, out)
        return self._pumped(now, out)

    # ---- what attempts report -----------------------------------------------------------------------------

    def _current(self, request_id: str, number: int, node_id: str) -> tuple[Live, Attempt] | None:
        """The request and its attempt, if that is the one the event speaks of."""
        live = self._state.live.get(request_id)
        attempt = None if live is None else live.attempt
        if live is not None and attempt is not None and attempt.number == number:  # noqa: SIM102 (hot path)
            if node_id == attempt.decode_id or node_id == attempt.prefill_id:
                return live, attempt
        self._state.stale += 1
        return None

    def _on_prefill_started(self, now: float, event: PrefillStarted) -> list[Effect]:
        if (found := self._current(event.request_id, event.attempt, event.node_id)) is None:
            return []
        live, attempt = found
        attempt.started = True
        if live.facts.cached_tokens is None:  # a retry's hits are the same tokens again
            live.facts.cached_tokens = event.cached_tokens
        decode = self._state.node(attempt.decode_id)
        if decode is not None:
            decode.decode.see(live.id, now)
        out: list[Effect] = []
        if attempt.fetch is not None:
            note_fetch(self._state, live, attempt, event, now, out)
        return out

    def _on_tokens_made(self, now: float, event: TokensMade) -> list[Effect]:
        if (found := self._current(event.request_id, event.attempt, event.node_id)) is None:
            return []
        live, attempt = found
        if attempt.ending is not None:
            return []
        out: list[Effect] = [*live.accept(event, attempt, now)]
        if attempt.prefilling and len(live.output) > attempt.base:
            return self._prefilled(live, attempt, now, out)
        if attempt.finished is not None and live.whole:
            fate.finish(self._state, live, attempt.finished.reason, now, out)
            return self._pumped(now, out)
        return out

    def _prefilled(self, live: Live, attempt: Attempt, now: float, out: list[Effect]) -> list[Effect]:
        """The attempt's first token is out: the prefill node has room for the next prompt."""
        attempt.prefilling = False
        attempt.started = True
        state = self._state
        prefill, decode = state.node(attempt.prefill_id), state.node(attempt.decode_id)
        if prefill is not None:
            prefill.prefill.done(live.id, now)
            prefill.learn_ttft(now - attempt.dispatched_s, attempt.prediction.ttft_s, now)
        if decode is not None:
            decode.decode.see(live.id, now)
        if attempt.prefill_id == attempt.decode_id or attempt.handed_off:
            state.leave_prefill(live, attempt)
        if attempt.finished is not None and live.whole:
            fate.finish(state, live, attempt.finished.reason, now, out)
        return self._pumped(now, out)

    def _on_handed_off(self, now: float, event: HandedOff) -> list[Effect]:
        found = self._current(event.request_id, event.attempt, event.node_id)
        if found is None or event.node_id != found[1].prefill_id or found[1].handed_off:
            return []
        live, attempt = found
        attempt.handed_off = True
        facts = live.facts
        if facts.decode_start_s is None:
            facts.decode_start_s = now
        facts.prefill_node_s += event.prefill_s
        facts.transfer_node_s += event.transfer_s
        facts.transfer_bytes += event.transfer_bytes
        decode = self._state.node(attempt.decode_id)
        if decode is not None:
            decode.decode.see(live.id, now)
        if not live.owes(attempt.prefill_id):
            self._state.leave_prefill(live, attempt)
        out: list[Effect] = []
        if attempt.ending is not None:
            fate.conclude(self._state, live, now, out)
        return self._pumped(now, out)

    def _on_node_finished(self, now: float, event: NodeFinished) -> list[Effect]:
        found = self._current(event.request_id, event.attempt, event.node_id)
        if found is None or found[1].finished is not None or found[1].ending is not None:
            return []
        live, attempt = found
        state = self._state
        out: list[Effect] = []
        if event.reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            error = Unavailable(f"node {event.node_id} ended it by itself ({event.reason.value})")
            fate.fail_attempt(state, live, error, event.node_id, now, out)
            return self._pumped(now, out)
        attempt.finished = event
        live.facts.preemptions += event.preemptions
        if live.whole:
            fate.finish(state, live, event.reason, now, out)
        elif event.node_id == attempt.decode_id:
            state.leave_decode(live, attempt)  # the gap is in the prefill node's stream
        return self._pumped(now, out)

    def _on_node_failed(self, now: float, event: NodeFailed) -> list[Effect]:
        found = self._current(event.request_id, event.attempt, event.node_id)
        if found is None:
            return []
        live, attempt = found
        state, error = self._state, event.error
        out: list[Effect] = []
        if not live.owes(event.node_id):
            if event.node_id != attempt.decode_id:
                fate.no_word(state, live, attempt, now, out)
            return self._pumped(now, out)
        if error.code is Code.FAILED_PRECONDITION and attempt.prefill_id != attempt.decode_id:
            state.registry.refuse(attempt.prefill_id, attempt.decode_id, error.message)
            out.append(Pair(attempt.prefill_id, attempt.decode_id, (error.message,)))
        elif error.code is Code.RESOURCE_EXHAUSTED and (node := state.node(event.node_id)) is not None:
            node.full = True
        fate.fail_attempt(state, live, error, event.node_id, now, out)
        return self._pumped(now, out)

    # ---- nodes --------------------------------------------------------------------------------------------

    def _on_node_joined(self, now: float, event: NodeJoined) -> list[Effect]:
        out: list[Effect] = []
        cluster.join(self._state, event.info, now, out)
        roles.start(self._state, now)
        return self._pumped(now, out)

    def _on_node_reported(self, now: float, event: NodeReported) -> list[Effect]:
        node = self._state.registry.current(event.node_id, event.incarnation)
        if node is None:
            self._state.stale += 1
            return []
        out: list[Effect] = []
        cluster.report(self._state, node, event.load, now, out)
        return self._pumped(now, out)

    def _on_node_lost(self, now: float, event: NodeLost) -> list[Effect]:
        node = self._state.registry.current(event.node_id, event.incarnation)
        if node is None:
            self._state.stale += 1
            return []
        out: list[Effect] = []
        cluster.lose(self._state, node, event.reason, now, out, gone=True)
        return self._pumped(now, out)

    def _on_kv_changed(self, now: float, event: KvChanged) -> list[Effect]:
        node = self._state.registry.current(event.node_id, event.incarnation)
        if node is None:
            self._state.stale += 1
        else:
            self._state.registry.kv_changed(node, event.stored, event.removed, reset=event.reset)
        return []

    # ---- operators and time -------------------------------------------------------------------------------

    def _on_operator_drain(self, now: float, event: OperatorDrain) -> list[Effect]:
        out: list[Effect] = []
        cluster.drain(self._state, event.node_id, event.draining, out)
        return self._pumped(now, out)

    def _on_operator_role(self, now: float, event: OperatorRole) -> list[Effect]:
        out: list[Effect] = []
        cluster.set_role(self._state, event.node_id, event.role, now, out)
        return self._pumped(now, out)

    def _on_tick(self, now: float, event: Tick) -> list[Effect]:
        state = self._state
        out: list[Effect] = []
        first = state.timers.next()
        slept = first is not None and now - first > self.config.lease_s / 3
        for kind, name in state.timers.pop_due(now):
            if kind in REQUEST_TIMERS:
                live = state.live.get(name)  # an earlier timer of this very tick may have ended it
                if live is not None:
                    self._request_timer(kind, live, now, out)
            elif (kind, name) == PLAN_TIMER:
                roles.plan(state, now, out)
            else:
                self._node_timer(kind, name, now, slept, out)
        return self._pumped(now, out)

    def _request_timer(self, kind: str, live: Live, now: float, out: list[Effect]) -> None:
        state = self._state
        if kind == "deadline":
            fate.cancel_attempt(state, live, out)
            fate.reject(state, live, fate.deadline_passed(state, live, now), now, out)
        elif kind == "word":
            fate.cancel_attempt(state, live, out)
            fate.conclude(state, live, now, out)
        elif kind == "wait":
            dispatch.give_up_waiting(state, live, now, out)
        else:
            del state.delayed[live.id]
            state.enqueue(live, now)

    def _node_timer(self, kind: str, node_id: str, now: float, slept: bool, out: list[Effect]) -> None:
        state = self._state
        node = state.node(node_id)
        if node is None:
            return
        if kind == "lease":
            cluster.check_lease(state, node, now, out, slept=slept)
        elif kind == "role":
            cluster.give_up_role(node, out)
        else:
            state.timers.clear(("role", node_id))  # an operator may have named it after its loss
            state.registry.forget(node)

    def _pumped(self, now: float, out: list[Effect]) -> list[Effect]:
        if len(self._state.queue):
            dispatch.pump(self._state, now, out)
        return out

    # ---- views --------------------------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        """When `Tick` is due (machine clock); None: never. Cheap, to be asked after every step."""
        return self._state.timers.next()

    @property
    def queued(self) -> int:
        """Requests that wait at the router."""
        return len(self._state.queue) + len(self._state.delayed)

    @property
    def in_flight(self) -> int:
        """Requests that are on nodes."""
        return len(self._state.live) - self.queued

    @property
    def stale_events(self) -> int:
        """Events dropped so far because an attempt or incarnation was over."""
        return self._state.stale

    def nodes(self, now: float) -> list[NodeStatus]:
        """All known nodes, lost ones for a while too, in the order they joined."""
        registry = self._state.registry
        return [
            NodeStatus(
                info=node.info,
                load=node.load,
                state=node.state,
                in_flight=node.in_flight,
                cached_blocks=len(node.prefixes),
                incompatible=tuple((m.other_id, m.items) for m in registry.mismatches(node)),
                report_age_s=max(0.0, now - node.reported_s),
            )
            for node in registry
        ]

    def node_in_flight(self, node_id: str) -> int:
        """This router's requests on a node; 0 for an unknown one."""
        node = self._state.node(node_id)
        return 0 if node is None else node.in_flight

    def ready(self) -> bool:
        """Whether some pair of nodes serves, room left aside."""
        return pair_serves(self._state.registry)

    def check(self) -> None:
        """Raise AssertionError unless all derived state agrees with the live requests. O(everything)."""
        self._state.check()
