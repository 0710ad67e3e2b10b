"""llm-d's latency scorer: headroom = SLO - prediction; of the nodes with headroom the one with the least.

That packs requests onto few nodes and keeps others free for what needs them. Where none has headroom, the one
that misses by least. Without a target a node has all the headroom there is, so the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.router.ask import Ask
from baton.router.nodes import Node
from baton.sim.baselines.separate import Separate, cached_tokens, least, tpot_s


def llm_d(seed: int) -> Separate:
    return Separate("llm-d headroom", pick_prefill, pick_decode)


def pick_prefill(ask: Ask, nodes: Sequence[Node]) -> Node:
    return _fullest_that_fits(nodes, ask.request.slo.ttft_s, lambda node: ttft_s(ask, node))


def pick_decode(ask: Ask, nodes: Sequence[Node]) -> Node:
    return _fullest_that_fits(nodes, ask.request.slo.tpot_s, lambda node: tpot_s(ask, node))


def ttft_s(ask: Ask, node: Node) -> float:
    cached = cached_tokens(ask, node)
    compute_s = node.cost.prefill_s(ask.request.prefill_tokens - cached, cached).mean_s
    return node.prefill_queue_s(ask.now) + compute_s


def _fullest_that_fits(
    nodes: Sequence[Node], target_s: float | None, cost_s: Callable[[Node], float]
) -> Node:
    if target_s is None:
        return least(nodes, cost_s)
    headrooms = [(target_s - cost_s(node), node) for node in nodes]
    fitting = [pair for pair in headrooms if pair[0] > 0.0]
    if fitting:
        return min(fitting, key=lambda pair: pair[0])[1]
    return max(headrooms, key=lambda pair: pair[0])[1]
