"""All that the router's machine remembers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from baton.router.answers import AnswerLengths
from baton.router.demand import Demand
from baton.router.lenders import Lenders
from baton.router.live import Attempt, Live
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Node, Registry
from baton.router.pending import Pending
from baton.router.planner import Planner, PlannerConfig
from baton.router.policy import Ask, Chooser
from baton.router.timers import Timers

OUTPUT_SMOOTHING = 0.05
PRIOR_OUTPUT_TOKENS = 64.0
DEADLINE_SHARE = 0.9
"""So much of a deadline is waited for a node to come, or for its word; the rest is for telling the client."""

REQUEST_TIMERS = ("deadline", "wait", "again", "word")
PLAN_TIMER = ("plan", "")  # all others are nodes': "lease", "role", "forget"


@dataclass(slots=True, eq=False)
class State:
    """live: every request that has not ended. Each is in `queue`, in `delayed`, or has an attempt.
    departures: when the last requests left a non-empty queue. stale: events dropped as out of date."""

    config: RouterConfig
    policy: Chooser
    registry: Registry
    queue: Pending
    timers: Timers = field(default_factory=Timers)
    live: dict[str, Live] = field(default_factory=dict)
    delayed: dict[str, Live] = field(default_factory=dict)
    planner: Planner | None = None
    demand: Demand = field(default_factory=lambda: Demand(PlannerConfig().tau_s))
    departures: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    output_tokens: float = PRIOR_OUTPUT_TOKENS
    answers: AnswerLengths = field(default_factory=AnswerLengths)
    stale: int = 0

    def node(self, node_id: str) -> Node | None:
        return self.registry.get(node_id)

    def learn_output(self, tokens: int) -> None:
        self.output_tokens += OUTPUT_SMOOTHING * (tokens - self.output_tokens)
        self.answers.add(tokens)

    def expected_output(self, live: Live) -> float:
        """Tokens it will yet make: its limit, or what requests usually make."""
        have = len(live.output)
        return max(1.0, min(live.request.max_tokens - have, max(self.output_tokens, 0.5 * have)))

    def ask(self, live: Live, now: float) -> Ask:
        return Ask(
            live.request,
            now,
            live.chains,
            self.expected_output(live),
            live.fingerprint,
            live.avoid,
            live.avoid_pairs,
            now - live.facts.arrived_s,
            Lenders(self.registry, live.chains) if self.config.fetch and self.registry.one_kv_type else None,
            () if live.output else self.answers.usual,
        )

    def enqueue(self, live: Live, now: float) -> None:
        self.queue.push(live, self._work_s(live), now)
        wait_s = self.config.no_node_wait_s
        if live.deadline_s is not None:  # a client whose deadline comes first must hear why in time
            wait_s = min(wait_s, DEADLINE_SHARE * (live.deadline_s - now))
        self.timers.set(("wait", live.id), now + wait_s)

    def _work_s(self, live: Live) -> float:
        """Of its prompt on a usual node, if it goes where most of it is cached."""
        registry, tokens = self.registry, live.request.prefill_tokens
        cached = max([0, *registry.known_tokens(live.chains)])
        return registry.average.prefill_s(max(1, tokens - cached), cached).mean_s

    # ---- which attempt is on which node: the only writers of the nodes' ledgers, with dispatch.send -----

    def leave_prefill(self, live: Live, attempt: Attempt) -> None:
        if attempt.on_prefill:
            attempt.on_prefill = False
            node = self.registry.get(attempt.prefill_id)
            if node is not None:
                node.prefill.drop(live.id)

    def leave_decode(self, live: Live, attempt: Attempt) -> None:
        if attempt.on_decode:
            attempt.on_decode = False
            node = self.registry.get(attempt.decode_id)
            if node is not None:
                node.decode.drop(live.id)

    def detach(self, live: Live) -> None:
        """The current attempt is over for this router."""
        attempt = live.attempt
        if attempt is not None:
            self.leave_prefill(live, attempt)
            self.leave_decode(live, attempt)
            live.attempt = None

    def check(self) -> None:
        self.queue.check()
        places = [live.id for live in self.queue] + list(self.delayed)
        places += [live.id for live in self.live.values() if live.attempt is not None]
        assert len(places) == len(set(places)), "a request is in two places"
        assert set(places) == set(self.live), "a request is nowhere, or ended and still somewhere"
        for kind, name in self.timers:
            if (kind, name) == PLAN_TIMER:
                continue
            known = self.live if kind in REQUEST_TIMERS else {node.id for node in self.registry}
            assert name in known, f"a timer {kind!r} of {name}, which is over"
        self.registry.check()
        for node in self.registry:
            node.prefill.check()
            node.decode.check()
            attempts = [(live.id, a) for live in self.live.values() if (a := live.attempt) is not None]
            assert set(node.prefill) == {i for i, a in attempts if a.on_prefill and a.prefill_id == node.id}
            assert set(node.decode) == {i for i, a in attempts if a.on_decode and a.decode_id == node.id}
