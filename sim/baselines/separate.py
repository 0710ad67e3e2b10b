"""What the published policies share: a prefill node is chosen, then a decode node, each by a rule of its own.

They dispatch at once and never hold a request back: queues are on the nodes, first come, first served, as
their papers and sources have it. What they know of a node is what a router knows (baton.router.nodes.Node).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.core.load import Role
from baton.router.ask import Ask
from baton.router.events import Prediction
from baton.router.nodes import Node, Registry
from baton.router.policy import Blocked, Choice, Why, eligible, why_none

Pick = Callable[[Ask, Sequence[Node]], Node]


@dataclass(frozen=True, slots=True)
class Separate:
    """`prefill` and `decode` pick from the nodes that may serve a leg: at least one, in order of joining."""

    name: str
    prefill: Pick
    decode: Pick

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        pools = pools_for(ask, registry)
        if isinstance(pools, Blocked):
            return pools
        prefills, decodes = pools
        compared = len(prefills) + len(decodes)
        return choice(ask, self.prefill(ask, prefills), self.decode(ask, decodes), compared)


def pools_for(ask: Ask, registry: Registry) -> tuple[list[Node], list[Node]] | Blocked:
    """Nodes for prefill and for decode. Those of role `both` count as decode nodes where others only prefill:
    so decode nodes may be allowed to prefill without becoming a part of the prefill pool."""
    prefills, decodes, _ = eligible(ask, registry)
    if not prefills or not decodes:
        return why_none(ask, registry)
    dedicated = [node for node in prefills if node.load.role is Role.PREFILL]
    return dedicated or prefills, decodes


def choice(ask: Ask, prefill: Node, decode: Node, compared: int) -> Choice:
    """With what the fitted costs say of it, for the router's own books."""
    tokens = ask.request.prefill_tokens
    cached = cached_tokens(ask, prefill)
    send_bytes = 0 if prefill is decode else tokens * prefill.info.kv_bytes_per_token
    prediction = Prediction(
        queue_s=prefill.prefill_queue_s(ask.now),
        prefill_s=prefill.cost.prefill_s(tokens - cached, cached).mean_s,
        transfer_s=prefill.cost.transfer_s(send_bytes).mean_s if send_bytes else 0.0,
        tpot_s=tpot_s(ask, decode),
        cached_tokens=cached,
    )
    return Choice(prefill, decode, prediction, prediction.queue_s + prediction.prefill_s, compared)


def refused(why: str) -> Blocked:
    """Turned away at once, where the router lets nobody wait (`catalogue.Baseline.config`)."""
    return Blocked(Why.NO_ROOM, (why,))


def cached_tokens(ask: Ask, node: Node) -> int:
    return ask.chains.matched_tokens(node.prefixes)


def tpot_s(ask: Ask, node: Node) -> float:
    """Seconds of a decode step with the newcomer in the batch."""
    rows, context = node.decode_rows + 1, node.context_tokens + ask.request.prefill_tokens
    return node.cost.decode_step_s(rows, context).mean_s


def kv_usage(node: Node) -> float:
    """Share of the node's KV blocks in use, as it last reported."""
    total = node.load.blocks_total
    return 1.0 - node.load.blocks_free / total if total else 0.0


def requests(node: Node) -> int:
    """This router's requests on the node: the counter that gateways keep."""
    return node.in_flight


def least(nodes: Sequence[Node], cost: Callable[[Node], float]) -> Node:
    """The cheapest; the first of equals."""
    return min(nodes, key=cost)
