"""How a pair of nodes is chosen for a request: filters, then scores in seconds, then a picker.

A policy is a value made of plain callables over (ask, node): which nodes have room for a leg, what a leg
costs there, what the two legs cost together, and which of the cheapest pairs to take. Each leg is scored once
per node; as a pair never costs less than its legs, most pairs need no score. What a pair must fulfil
to be right at all (roles, fit, context limit, exclusion after failures) is not a policy's business: it is
decided here, for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import NamedTuple, TypeVar

from baton.core.model import Fingerprint
from baton.core.request import Request
from baton.router.events import Prediction
from baton.router.nodes import Node, Registry
from baton.router.prefix_view import PromptChains

MAX_LEGS = 16  # where every pair is allowed, only so many of the best nodes of each leg are paired


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants a pair of nodes now. expected_output_tokens: a guess at what it will yet make."""

    request: Request
    now: float
    chains: PromptChains
    expected_output_tokens: float
    fingerprint: Fingerprint | None = None
    avoid: Iterable[str] = ()
    avoid_pairs: Iterable[tuple[str, str]] = ()


class PrefillLeg(NamedTuple):
    """stall_s: what the computation costs decodes on the same node. transfer_*: how long this node takes to
    push KV away, and what of a transfer cannot overlap the computation."""

    node: Node
    queue_s: float
    compute_s: float
    cached_tokens: int
    stall_s: float = 0.0
    transfer_fixed_s: float = 0.0
    transfer_token_s: float = 0.0
    transfer_tail_s: float = 0.0

    @property
    def cost_s(self) -> float:
        return self.queue_s + self.compute_s + self.stall_s


class DecodeLeg(NamedTuple):
    """tpot_s: with the newcomer in the batch. impact_s: what it costs in decode, the others included.
    new_tokens: those whose KV must be sent. sharing: how many hand-offs share the node's link."""

    node: Node
    wait_s: float
    tpot_s: float
    impact_s: float
    new_tokens: int
    sharing: int = 1

    @property
    def cost_s(self) -> float:
        return self.wait_s + self.impact_s


class Scored(NamedTuple):
    """A pair and its cost: lower is better."""

    prefill: PrefillLeg
    decode: DecodeLeg
    transfer_s: float
    score_s: float


class Why(Enum):
    NO_NODE = "no node"  # none that could ever take it serves now
    INCOMPATIBLE = "incompatible"  # both legs are served, by nodes that do not fit together
    TOO_LONG = "too long"  # more than any node's context limit
    FULL = "full"  # no room for anybody
    NO_ROOM = "no room"  # not for this one: a smaller or other one may pass


@dataclass(frozen=True, slots=True)
class Blocked:
    why: Why
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    prefill: Node
    decode: Node
    prediction: Prediction
    score_s: float
    pairs: int  # how many were compared


Filter = Callable[[Ask, Node], bool]
Picker = Callable[[Ask, Sequence[Scored]], Scored]
Pairs = list[tuple[Node, Node]]
Allowed = dict[tuple[Node, Node], None] | None
"""Pairs that may be used; None: all."""
Leg = TypeVar("Leg", PrefillLeg, DecodeLeg)


@dataclass(frozen=True, slots=True)
class Policy:
    """decode_rows: whether a decode node can take anybody at all; decode_room: this one in particular. pair:
    never less than the costs of its legs. pick: gets the pairs within `tie_fraction`, or `tie_s`, of the
    cheapest."""

    prefill_room: Filter
    decode_rows: Filter
    decode_room: Filter
    prefill_leg: Callable[[Ask, Node], PrefillLeg]
    decode_leg: Callable[[Ask, Node], DecodeLeg]
    pair: Callable[[PrefillLeg, DecodeLeg], Scored]
    pick: Picker
    tie_fraction: float = 0.0
    tie_s: float = 1e-9
    name: str = field(default="")

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        prefills, decodes, pairs = eligible(ask, registry)
        if not prefills or not decodes:
            return why_none(ask, registry)
        open_prefills = [node for node in prefills if self.prefill_room(ask, node)]
        with_rows = [node for node in decodes if self.decode_rows(ask, node)]
        if not open_prefills or not with_rows:
            return Blocked(Why.NO_ROOM if pairs is not None else Why.FULL)
        open_decodes = [node for node in with_rows if self.decode_room(ask, node)]
        most = MAX_LEGS if pairs is None else None
        first = _by_cost([self.prefill_leg(ask, node) for node in open_prefills])[:most]
        second = _by_cost([self.decode_leg(ask, node) for node in open_decodes])[:most]
        close, compared = self._cheapest(first, second, pairs)
        if not close:
            return Blocked(Why.NO_ROOM)
        best = self.pick(ask, close)
        return Choice(best.prefill.node, best.decode.node, _prediction(best), best.score_s, compared)

    def _cheapest(
        self,
        first: list[tuple[float, str, PrefillLeg]],
        second: list[tuple[float, str, DecodeLeg]],
        pairs: Allowed,
    ) -> tuple[list[Scored], int]:
        """The pairs that cost about as much as the cheapest, and how many were scored to find them."""
        limit, lowest, compared = math.inf, math.inf, 0
        close: list[Scored] = []
        for prefill_s, _, prefill in first:
            for decode_s, _, decode in second:
                if prefill_s + decode_s > limit:
                    break  # and so do all further ones
                if pairs is not None and (prefill.node, decode.node) not in pairs:
                    continue
                scored = self.pair(prefill, decode)
                compared += 1
                if scored.score_s <= limit:
                    close.append(scored)
                    if scored.score_s < lowest:
                        lowest = scored.score_s
                        limit = lowest + max(abs(lowest) * self.tie_fraction, self.tie_s)
        return [pair for pair in close if pair.score_s <= limit], compared


def eligible(ask: Ask, registry: Registry) -> tuple[list[Node], list[Node], Allowed]:
    """Nodes for each leg that may serve the request, room left aside; and the allowed combinations."""
    suiting = _suiting(ask, registry)
    prefills = [node for node in suiting if node.may_prefill]
    decodes = [node for node in suiting if node.may_decode]
    if registry.uniform and not ask.avoid and not ask.avoid_pairs:
        return prefills, decodes, None
    fitting = [(p, d) for p in prefills for d in decodes if registry.fit(p, d)]
    pairs = dict.fromkeys(_without_failed(ask, fitting))
    return (
        list(dict.fromkeys(p for p, _ in pairs)),
        list(dict.fromkeys(d for _, d in pairs)),
        pairs,
    )


def _suiting(ask: Ask, nodes: Iterable[Node]) -> list[Node]:
    """Those that could hold its whole prompt and a token more, and speak of the same weights."""
    request, fingerprint = ask.request, ask.fingerprint
    tokens = len(request.prompt_ids) + len(request.output_ids) + 1
    long_enough = [node for node in nodes if node.info.max_model_len >= tokens]
    if fingerprint is None:
        return long_enough
    return [node for node in long_enough if node.info.fingerprint == fingerprint]


def _without_failed(ask: Ask, pairs: Pairs) -> Pairs:
    """Leave out what failed this request before, as long as something else is left."""
    avoid, avoid_pairs = set(ask.avoid), set(ask.avoid_pairs)
    if not avoid and not avoid_pairs:
        return pairs
    other = [(p, d) for p, d in pairs if (p.id, d.id) not in avoid_pairs]
    fresh = [(p, d) for p, d in other if p.id not in avoid and d.id not in avoid]
    return fresh or other or pairs


def why_none(ask: Ask, registry: Registry) -> Blocked:
    """No pair may serve the request: say why."""
    prefills = [node for node in registry if node.may_prefill]
    decodes = [node for node in registry if node.may_decode]
    if not prefills or not decodes:
        return Blocked(Why.NO_NODE)
    long_prefills, long_decodes = _suiting(ask, prefills), _suiting(ask, decodes)
    if not long_prefills or not long_decodes:
        return Blocked(Why.NO_NODE if ask.fingerprint is not None else Why.TOO_LONG)
    items: dict[str, None] = {}
    for p in long_prefills:
        for d in long_decodes:
            for item in registry.why_not(p, d):
                items[f"{p.id} to {d.id}: {item}"] = None
    return Blocked(Why.INCOMPATIBLE, tuple(items)[:8])


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
    )
