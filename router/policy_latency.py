"""The latency-aware policy: the least predicted seconds, for the newcomer and for those already there.

Score of a pair (p, d), in seconds:

    queue(p) + prefill(p, what p lacks) + exposed transfer(p, d, what d lacks) + wait(d) + w * decode(d)

decode(d) is what the newcomer's decode costs: its own expected output at the step time of the batch it joins,
and the slowdown of every row already there over the same span. The transfer overlaps the computation that
produces it, so only what outlasts that is exposed, and it shares d's link with the hand-offs under way.
"""

from __future__ import annotations

from baton.core.load import Role
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Node
from baton.router.policy import Ask, DecodeLeg, Policy, PrefillLeg, Scored
from baton.router.policy_pick import spread_ties


class LatencyLegs:
    """Filters and scorers over one configuration."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config

    def prefill_room(self, ask: Ask, node: Node) -> bool:
        """Bounded work on nodes: what waits, waits where it can still be sent elsewhere. One request may
        always wait behind the one being computed, so that the node never idles for a round trip."""
        if node.full or len(node.prefill) >= self._config.max_node_requests:
            return False
        return node.prefill_requests < 2 or node.prefill_queue_s < self._config.max_node_wait_s

    def decode_rows(self, ask: Ask, node: Node) -> bool:
        limit = node.load.max_running
        return not node.full and (limit == 0 or node.decode_rows < limit + self._config.decode_slack)

    def decode_room(self, ask: Ask, node: Node) -> bool:
        """Room for the prompt and the next block, or an idle node: nothing will ever leave one more."""
        if node.load.blocks_total == 0 or node.decode_rows == 0:
            return True
        return node.blocks_for(ask.request.prefill_tokens + 1) <= node.blocks_free

    def prefill_leg(self, ask: Ask, node: Node) -> PrefillLeg:
        cached = ask.chains.matched_tokens(node.prefixes)
        compute = node.cost.prefill_s(ask.request.prefill_tokens - cached, cached)
        return PrefillLeg(node, node.prefill_queue_s, compute.quantile_s(self._config.risk), cached)

    def decode_leg(self, ask: Ask, node: Node) -> DecodeLeg:
        cached = ask.chains.matched_tokens(node.prefixes)
        rows, context, cost = node.decode_rows, node.context_tokens, node.cost
        limit = node.load.max_running or rows + 1
        before = cost.decode_step_s(min(rows, limit), context).mean_s if rows else 0.0
        after = cost.decode_step_s(min(rows + 1, limit), context + ask.request.prefill_tokens)
        tpot = after.quantile_s(self._config.risk)
        expected = ask.expected_output_tokens
        ahead = rows + 1 - limit  # how many must leave before the newcomer runs
        wait = ahead * tpot * expected / limit if ahead > 0 else 0.0
        slowdown = max(0.0, after.mean_s - before) if rows else 0.0
        impact = self._config.decode_weight * expected * (tpot + rows * slowdown)
        return DecodeLeg(node, wait, tpot, impact, cached)

    def pair(self, ask: Ask, prefill: PrefillLeg, decode: DecodeLeg) -> Scored:
        p, d = prefill.node, decode.node
        score = prefill.queue_s + prefill.compute_s + decode.wait_s + decode.impact_s
        if p is d:
            transfer = 0.0
        else:
            payload = (ask.request.prefill_tokens - decode.cached_tokens) * p.info.kv_bytes_per_token
            sharing = 1 + min(d.decode.recent, 8)
            alone = p.cost.transfer_s(payload).quantile_s(self._config.risk)
            last = p.cost.transfer_s(p.info.block_size * p.info.kv_bytes_per_token).mean_s
            transfer = max(alone * sharing - prefill.compute_s, last)
        if d.load.role is Role.BOTH or p.load.role is Role.BOTH:
            # a prompt stalls the decode rows of the node that computes it
            score += self._config.decode_weight * prefill.compute_s * p.decode_rows
        return Scored(prefill, decode, transfer, score + transfer)


def latency_policy(config: RouterConfig) -> Policy:
    legs = LatencyLegs(config)
    return Policy(
        prefill_room=legs.prefill_room,
        decode_rows=legs.decode_rows,
        decode_room=legs.decode_room,
        prefill_leg=legs.prefill_leg,
        decode_leg=legs.decode_leg,
        pair=legs.pair,
        pick=spread_ties(config.tie_fraction),
        name="latency",
    )


POLICIES = {"latency": latency_policy}
