"""How a pair of nodes is chosen for a request: filters, then scores in seconds, then a picker.

A policy is a value made of plain callables over (ask, node): which nodes have room for a leg, what a leg
costs there, what the two legs cost together, and which of the scored pairs to take. What a pair must fulfil
to be right at all (roles, fit, context limit, exclusion after failures) is not a policy's business: it is
decided here, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from baton.core.model import Fingerprint
from baton.core.request import Request
from baton.router.events import Prediction
from baton.router.nodes import Node, Registry
from baton.router.prefix_view import PromptChains

MAX_PAIRS = 256  # beyond, only the best nodes of each leg are paired


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
Leg = TypeVar("Leg", PrefillLeg, DecodeLeg)


@dataclass(frozen=True, slots=True)
class Policy:
    """decode_rows: whether a decode node can take anybody at all; decode_room: this one in particular."""

    prefill_room: Filter
    decode_rows: Filter
    decode_room: Filter
    prefill_leg: Callable[[Ask, Node], PrefillLeg]
    decode_leg: Callable[[Ask, Node], DecodeLeg]
    pair: Callable[[PrefillLeg, DecodeLeg], Scored]
    pick: Picker
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
        first = [self.prefill_leg(ask, node) for node in open_prefills]
        second = [self.decode_leg(ask, node) for node in open_decodes]
        if len(first) * len(second) > MAX_PAIRS and pairs is None:
            first, second = _best(first), _best(second)
        pair = self.pair
        scored = [pair(p, d) for p in first for d in second if pairs is None or (p.node, d.node) in pairs]
        if not scored:
            return Blocked(Why.NO_ROOM)
        best = self.pick(ask, scored)
        return Choice(best.prefill.node, best.decode.node, _prediction(best), best.score_s, len(scored))


def eligible(
    ask: Ask, registry: Registry
) -> tuple[list[Node], list[Node], dict[tuple[Node, Node], None] | None]:
    """Nodes for each leg that may serve the request, room left aside. pairs: the allowed combinations,
    None when all are."""
    prefills = [node for node in registry if node.may_prefill and _suits(ask, node)]
    decodes = [node for node in registry if node.may_decode and _suits(ask, node)]
    if registry.uniform and not ask.avoid and not ask.avoid_pairs:
        return prefills, decodes, None
    fitting = [(p, d) for p in prefills for d in decodes if registry.fit(p, d)]
    pairs = dict.fromkeys(_without_failed(ask, fitting))
    return (
        list(dict.fromkeys(p for p, _ in pairs)),
        list(dict.fromkeys(d for _, d in pairs)),
        pairs,
    )


def _suits(ask: Ask, node: Node) -> bool:
    request, info = ask.request, node.info
    if len(request.prompt_ids) + max(1, len(request.output_ids) + 1) > info.max_model_len:
        return False
    return ask.fingerprint is None or ask.fingerprint == info.fingerprint


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
    long_prefills = [node for node in prefills if _suits(ask, node)]
    long_decodes = [node for node in decodes if _suits(ask, node)]
    if not long_prefills or not long_decodes:
        return Blocked(Why.NO_NODE if ask.fingerprint is not None else Why.TOO_LONG)
    items: dict[str, None] = {}
    for p in long_prefills:
        for d in long_decodes:
            for item in registry.why_not(p, d):
                items[f"{p.id} to {d.id}: {item}"] = None
    return Blocked(Why.INCOMPATIBLE, tuple(items)[:8])


def _best(legs: list[Leg]) -> list[Leg]:
    """The legs with the lowest cost, ties by id."""
    return sorted(legs, key=lambda leg: (leg.cost_s, leg.node.id))[: int(MAX_PAIRS**0.5)]


def _prediction(best: Scored) -> Prediction:
    return Prediction(
        queue_s=best.prefill.queue_s,
        prefill_s=best.prefill.compute_s,
        transfer_s=best.transfer_s,
        decode_wait_s=best.decode.wait_s,
        tpot_s=best.decode.tpot_s,
        cached_tokens=best.prefill.cached_tokens,
    )
