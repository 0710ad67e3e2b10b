"""smg's least_load: (queued + in flight since the last poll) / throughput + 0.15 k / (1 - k) seconds.

k is the node's KV usage. Throughput is of the node's own work: prompt tokens on prefill nodes, output tokens
on decode nodes, both from the fitted costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.ask import Ask
from baton.router.nodes import Node
from baton.sim.baselines.separate import Separate, kv_usage, least

USAGE_WEIGHT_S = 0.15
NEARLY_FULL = 0.999  # the penalty has a pole at 1


def least_load(seed: int) -> Separate:
    return Separate("least_load", pick_prefill, pick_decode)


def pick_prefill(ask: Ask, nodes: Sequence[Node]) -> Node:
    """prefill_queue_s is what the report says to wait, and what was sent since."""
    return least(nodes, lambda node: node.prefill_queue_s(ask.now) + usage_s(node))


def pick_decode(ask: Ask, nodes: Sequence[Node]) -> Node:
    def cost_s(node: Node) -> float:
        rows = node.decode_rows
        step_s = node.cost.decode_step_s(max(1, rows), node.context_tokens).mean_s
        per_token_s = step_s / max(1, rows)
        return rows * ask.expected_output_tokens * per_token_s + usage_s(node)

    return least(nodes, cost_s)


def usage_s(node: Node) -> float:
    k = min(NEARLY_FULL, kv_usage(node))
    return USAGE_WEIGHT_S * k / (1.0 - k)
