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
from baton.router.policy_pick import spread

MAX_SHARING = 8  # hand-offs to one node at once, beyond which more are taken to come one after another


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
        risk, info = self._config.risk, node.info
        cached = ask.chains.matched_tokens(node.prefixes)
        compute_s = node.cost.prefill_s(ask.request.prefill_tokens - cached, cached).quantile_s(risk)
        stalled = node.decode_rows if node.load.role is Role.BOTH else 0
        fixed_s, byte_s = node.cost.transfer_line(risk)
        token_s = byte_s * info.kv_bytes_per_token
        return PrefillLeg(
            node=node,
            queue_s=node.prefill_queue_s,
            compute_s=compute_s,
            cached_tokens=cached,
            stall_s=self._config.decode_weight * compute_s * stalled,
            transfer_fixed_s=fixed_s,
            transfer_token_s=token_s,
            transfer_tail_s=fixed_s + token_s * info.block_size,
        )

    def decode_leg(self, ask: Ask, node: Node) -> DecodeLeg:
        tokens = ask.request.prefill_tokens
        cached = ask.chains.matched_tokens(node.prefixes)
        rows, context, cost = node.decode_rows, node.context_tokens, node.cost
        limit = node.load.max_running or rows + 1
        after = cost.decode_step_s(min(rows + 1, limit), context + tokens)
        tpot_s = after.quantile_s(self._config.risk)
        expected = ask.expected_output_tokens
        ahead = rows + 1 - limit  # how many must leave before the newcomer runs
        wait_s = ahead * tpot_s * expected / limit if ahead > 0 else 0.0
        slowdown_s = 0.0
        if rows:
            slowdown_s = max(0.0, after.mean_s - cost.decode_step_s(min(rows, limit), context).mean_s)
        impact_s = self._config.decode_weight * expected * (tpot_s + rows * slowdown_s)
        sharing = 1 + min(node.decode.recent, MAX_SHARING)
        return DecodeLeg(node, wait_s, tpot_s, impact_s, tokens - cached, sharing)

    @staticmethod
    def pair(prefill: PrefillLeg, decode: DecodeLeg) -> Scored:
        score_s = prefill.cost_s + decode.cost_s
        if prefill.node is decode.node:
            return Scored(prefill, decode, 0.0, score_s)
        whole_s = prefill.transfer_fixed_s + prefill.transfer_token_s * decode.new_tokens
        exposed_s = max(whole_s * decode.sharing - prefill.compute_s, prefill.transfer_tail_s)
        return Scored(prefill, decode, exposed_s, score_s + exposed_s)


def latency_policy(config: RouterConfig) -> Policy:
    legs = LatencyLegs(config)
    return Policy(
        prefill_room=legs.prefill_room,
        decode_rows=legs.decode_rows,
        decode_room=legs.decode_room,
        prefill_leg=legs.prefill_leg,
        decode_leg=legs.decode_leg,
        pair=legs.pair,
        pick=spread,
        tie_fraction=config.tie_fraction,
        tie_s=config.tie_s,
        name="latency",
    )


POLICIES = {"latency": latency_policy}
