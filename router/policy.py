"""How a pair of nodes is chosen for a request: filters, then scores in seconds, then a picker.

A policy is a value made of plain callables over (ask, node): which nodes have room for a leg, what a leg
costs there, what the two legs cost together, and which of the cheapest pairs to take. Each leg is scored once
per node; as a pair never costs less than its legs, most pairs need no score. What a pair must fulfil
to be right at all (roles, fit, context limit, exclusion after failures) is not a policy's business: it is
decided in `shortlist`, for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from baton.core.value import value
from baton.router.ask import Ask
from baton.router.events import Fetch, Prediction
from baton.router.fetches import FetchLeg
from baton.router.nodes import Node, Registry
from baton.router.shortlist import NEAREST, Allowed, Kind, allowed, candidates, kinds, may_serve

__all__ = [
    "Ask",
    "Blocked",
    "Choice",
    "Chooser",
    "DecodeLeg",
    "Policy",
    "PrefillLeg",
    "Scored",
    "Why",
    "eligible",
]


class PrefillLeg(NamedTuple):
    """stall_s: what the computation costs decodes on the same node. late: the chance that the first token is,
    miss_s: what that is worth. transfer_*: how long this node takes to push KV away, and what of a transfer
    cannot overlap the computation. fetch: what of the prompt comes from another node first; cached_tokens
    are those then, too."""

    node: Node
    queue_s: float
    compute_s: float
    cached_tokens: int
    stall_s: float = 0.0
    late: float = 0.0
    miss_s: float = 0.0
    transfer_fixed_s: float = 0.0
    transfer_token_s: float = 0.0
    transfer_tail_s: float = 0.0
    fetch: FetchLeg | None = None

    @property
    def begin_s(self) -> float:
        """Until the computation begins."""
        return self.queue_s if self.fetch is None else self.queue_s + self.fetch.wait_s

    @property
    def cost_s(self) -> float:
        return self.begin_s + self.compute_s + self.stall_s + self.miss_s


class DecodeLeg(NamedTuple):
    """tpot_s: with the newcomer in the batch. impact_s: what it costs in decode, the others included.
    new_tokens: those whose KV must be sent. slow: the chance that the newcomer's tokens are too slow; harm:
    how many of the others' will be, for its sake; miss_s: what both are worth."""

    node: Node
    wait_s: float
    tpot_s: float
    impact_s: float
    new_tokens: int
    miss_s: float = 0.0
    slow: float = 0.0
    harm: float = 0.0

    @property
    def cost_s(self) -> float:
        return self.wait_s + self.impact_s + self.miss_s


class Scored(NamedTuple):
    """A pair and its cost: lower is better. gain: the chance that the newcomer meets its targets, less the
    number of others that will miss theirs for it."""

    prefill: PrefillLeg
    decode: DecodeLeg
    transfer_s: float
    score_s: float
    gain: float = 1.0


class Why(Enum):
    NO_NODE = "no node"  # none that could ever take it serves now
    INCOMPATIBLE = "incompatible"  # both legs are served, by nodes that do not fit together
    TOO_LONG = "too long"  # more than any node's context limit
    FULL = "full"  # no room for anybody
    NO_ROOM = "no room"  # not for this one: a smaller or other one may pass
    HARMFUL = "harmful"  # it would cost others more than it gains: others may pass


@value
class Blocked:
    why: Why
    items: tuple[str, ...] = ()


@value
class Choice:
    """gain: see Scored. late, slow: the chances that its first token is, that its tokens are. pairs: how many
    were compared. whole: no prefill node was left out for lack of room. fetch: see PrefillLeg."""

    prefill: Node
    decode: Node
    prediction: Prediction
    score_s: float
    pairs: int
    gain: float = 1.0
    late: float = 0.0
    slow: float = 0.0
    whole: bool = True
    fetch: FetchLeg | None = None

    @property
    def order(self) -> Fetch | None:
        """What the prefill node is told of the fetch."""
        leg = self.fetch
        return None if leg is None else Fetch(leg.lender.id, leg.tokens, leg.patience_s)


class Chooser(Protocol):
    """What the router's machine asks of a policy."""

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked: ...


Filter = Callable[[Ask, Node], bool]
Picker = Callable[[Ask, Sequence[Scored]], Scored]
Leg = TypeVar("Leg", PrefillLeg, DecodeLeg)


@dataclass(frozen=True, slots=True)
class Policy:
    """decode_rows: whether a decode node can take anybody at all; decode_room: this one in particular.
    decode_leg: its third argument is when, in seconds, the KV is expected to be there. pair: never less than
    the costs of its legs, whose sum is the last argument. pick: gets the pairs within `tie_fraction`, or
    `tie_s`, of the cheapest."""

    prefill_room: Filter
    decode_rows: Filter
    decode_room: Filter
    prefill_leg: Callable[[Ask, Node], PrefillLeg]
    decode_leg: Callable[[Ask, Node, float], DecodeLeg]
    pair: Callable[[Ask, PrefillLeg, DecodeLeg, float], Scored]
    pick: Picker
    tie_fraction: float = 0.0
    tie_s: float = 1e-9
    name: str = field(default="")

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        found = kinds(ask, registry)
        if not found or not (registry.uniform or may_serve(ask, registry)):
            return why_none(ask, registry)
        may = allowed(ask, registry, found)
        prefills = self._open(ask, registry, found, "prefills")
        if not prefills:
            return Blocked(Why.FULL if may is None else Why.NO_ROOM)
        decodes = self._open(ask, registry, found, "decodes")
        if not decodes:
            rows = any(candidates(ask, registry, kind.decodes, "decodes", self.decode_rows) for kind in found)
            return Blocked(Why.NO_ROOM if rows or may is not None else Why.FULL)
        here = [node for node in prefills if node.may_decode and self._decode_open(ask, node)]
        decodes = list(dict.fromkeys([*decodes, *here]))
        first = _by_cost([self.prefill_leg(ask, node) for node in prefills])
        after_s = min([leg.begin_s + leg.compute_s for _, _, leg in first])
        second = _by_cost([self.decode_leg(ask, node, after_s) for node in decodes])
        close, compared = self._cheapest(ask, first, second, may)
        if not close:
            return Blocked(Why.NO_ROOM)
        best = self.pick(ask, close)
        most = sum(len(group.prefills) for kind in found for group in kind.prefills)
        return Choice(
            best.prefill.node,
            best.decode.node,
            _prediction(best),
            best.score_s,
            compared,
            best.gain,
            best.prefill.late,
            best.decode.slow,
            whole=len(prefills) >= min(most, NEAREST),
            fetch=best.prefill.fetch,
        )

    def _open(self, ask: Ask, registry: Registry, found: list[Kind], leg: str) -> list[Node]:
        """Nodes worth a look that have room."""
        room = self.prefill_room if leg == "prefills" else self._decode_open
        return list(
            chain.from_iterable(candidates(ask, registry, getattr(kind, leg), leg, room) for kind in found)
        )

    def _decode_open(self, ask: Ask, node: Node) -> bool:
        return self.decode_rows(ask, node) and self.decode_room(ask, node)

    def _cheapest(
        self,
        ask: Ask,
        first: list[tuple[float, str, PrefillLeg]],
        second: list[tuple[float, str, DecodeLeg]],
        may: Allowed | None,
    ) -> tuple[list[Scored], int]:
        """The pairs that cost about as much as the cheapest, and how many were scored to find them."""
        limit, lowest, compared = math.inf, math.inf, 0
        close: list[Scored] = []
        for prefill_s, _, prefill in first:
            for decode_s, _, decode in second:
                if prefill_s + decode_s > limit:
                    break  # and so do all further ones
                if may is not None and not may(prefill.node, decode.node):
                    continue
                scored = self.pair(ask, prefill, decode, prefill_s + decode_s)
                compared += 1
                if scored.score_s <= limit:
                    close.append(scored)
                    if scored.score_s < lowest:
                        lowest = scored.score_s
                        limit = lowest + max(abs(lowest) * self.tie_fraction, self.tie_s)
        return [pair for pair in close if pair.score_s <= limit], compared


def eligible(ask: Ask, registry: Registry) -> tuple[list[Node], list[Node], Allowed | None]:
    """All nodes for each leg that may serve the request, room left aside, and which pairs of them may be
    used (None: all). For policies that look at every node."""
    found = kinds(ask, registry)
    if not found or not (registry.uniform or may_serve(ask, registry)):
        return [], [], None
    prefills = [node for kind in found for group in kind.prefills for node in group.prefills]
    decodes = [node for kind in found for group in kind.decodes for node in group.decodes]
    may = allowed(ask, registry, found)
    if may is not None:
        prefills = [p for p in prefills if any(may(p, d) for d in decodes)]
        decodes = [d for d in decodes if any(may(p, d) for p in prefills)]
    number = lambda node: node.number  # noqa: E731
    return sorted(prefills, key=number), sorted(decodes, key=number), may


def why_none(ask: Ask, registry: Registry) -> Blocked:
    """No pair may serve the request: say why."""
    groups = registry.board.groups()
    if not any(len(g.prefills) for g in groups) or not any(len(g.decodes) for g in groups):
        return Blocked(Why.NO_NODE)
    tokens = ask.request.prefill_tokens + 1
    long = [group for group in groups if group.max_model_len >= tokens]
    if ask.fingerprint is not None:
        long = [group for group in long if group.fingerprint == ask.fingerprint]
    prefills = [node for group in long for node in group.prefills]
    decodes = [node for group in long for node in group.decodes]
    if not prefills or not decodes:
        return Blocked(Why.NO_NODE if ask.fingerprint is not None else Why.TOO_LONG)
    items: dict[str, None] = {}
    for p in prefills:
        for d in decodes:
            for item in registry.why_not(p, d):
                items[f"{p.id} to {d.id}: {item}"] = None
            if len(items) >= 8:
                return Blocked(Why.INCOMPATIBLE, tuple(items)[:8])
    return Blocked(Why.INCOMPATIBLE, tuple(items))


def _by_cost(legs: list[Leg]) -> list[tuple[float, str, Leg]]:
    """(seconds, node id, leg), the cheapest first, ties by id."""
    return sorted([(leg.cost_s, leg.node.id, leg) for leg in legs], key=itemgetter(0, 1))


def _prediction(best: Scored) -> Prediction:
    return Prediction(
        queue_s=best.prefill.queue_s,
        prefill_s=best.prefill.compute_s,
        transfer_s=best.transfer_s,
        decode_wait_s=best.decode.wait_s,
        tpot_s=best.decode.tpot_s,
        cached_tokens=best.prefill.cached_tokens,
        fetch_s=best.prefill.begin_s - best.prefill.queue_s,
    )
