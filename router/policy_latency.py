"""The latency-aware policy: the least predicted seconds and the fewest targets missed, for the newcomer and
for those already there.

Score of a pair (p, d), in seconds:

    queue(p) + prefill(p, what p lacks) + exposed transfer(p, d, what d lacks) + wait(d) + w * decode(d)
      + v * (chance of a late first token + chance of slow tokens + how many others d makes slow)

decode(d) is what the newcomer's decode costs: its own expected output at the step time of the batch it joins,
and the slowdown of every row already there over the same span. The transfer overlaps the computation that
produces it, so only what outlasts that is exposed; it follows the hand-offs that either link has before it.
Chances come from how far earlier predictions of the same node were off. A cached prefix is worth the
seconds it saves, no more: where its node's queue costs more, the prompt is computed, and cached, elsewhere.
"""

from __future__ import annotations

from baton.core.request import TPOT_SHARE
from baton.core.residuals import Residuals
from baton.router.ask import Ask
from baton.router.fetches import Alone, best_fetch
from baton.router.machine_config import RouterConfig
from baton.router.nodes import OVERHEAD_S, Node
from baton.router.policy import DecodeLeg, Policy, PrefillLeg, Scored
from baton.router.policy_pick import spread


class LatencyLegs:
    """Filters and scorers over one configuration."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config

    def prefill_room(self, ask: Ask, node: Node) -> bool:
        """Bounded work on nodes: what waits, waits where it can still be sent elsewhere. A little may always
        wait behind what is being computed, so that the node never idles for a round trip. Where its prefix is
        cached it may wait for as long as that saves."""
        config = self._config
        if node.full or len(node.prefill) >= config.max_node_requests:
            return False
        if not node.prefill_requests:
            return True
        queue_s = node.prefill_queue_s(ask.now)
        if queue_s < config.max_node_wait_s:
            return True
        cached = ask.chains.matched_tokens(node.prefixes)
        if not cached:
            return False
        return queue_s < config.max_node_wait_s + self._saved_s(ask, node, cached)

    def _saved_s(self, ask: Ask, node: Node, cached: int) -> float:
        tokens = ask.request.prefill_tokens
        return node.cost.prefill_s(tokens, 0).mean_s - node.cost.prefill_s(tokens - cached, cached).mean_s

    def decode_rows(self, ask: Ask, node: Node) -> bool:
        limit = node.load.max_running
        return not node.full and (limit == 0 or node.decode_rows < limit + self._config.decode_slack)

    def decode_room(self, ask: Ask, node: Node) -> bool:
        """Room for the prompt and the next block, or an idle node: nothing will ever leave one more."""
        if node.load.blocks_total == 0 or node.decode_rows == 0:
            return True
        return node.blocks_for(ask.request.prefill_tokens + 1) <= node.blocks_free

    def prefill_leg(self, ask: Ask, node: Node) -> PrefillLeg:
        config, cost, info = self._config, node.cost, node.info
        cached = ask.chains.matched_tokens(node.prefixes)
        queue_s = node.prefill_queue_s(ask.now)
        compute_s = cost.prefill_at(config.quantile, ask.request.prefill_tokens - cached, cached)
        fetch, wait_s = None, 0.0
        if ask.lenders is not None and (lenders := ask.lenders.of(info.block_size, node.prefixes.revision)):
            fetch = best_fetch(ask, node, lenders, Alone(cached, queue_s, compute_s, config.quantile))
        if fetch is not None:
            cached, compute_s, wait_s = fetch.tokens, fetch.compute_s, fetch.wait_s
        stall_s = 0.0
        if node.decodes and (rows := node.decode_rows):
            stall_s = config.decode_weight * compute_s * rows
            compute_s /= node.prefill_share
        fixed_s, byte_s = cost.transfer_line(config.quantile)
        token_s = byte_s * info.kv_bytes_per_token
        before_s = ask.waited_s + queue_s + wait_s
        late = self._late(ask, node, before_s + compute_s)
        if risk := cost.prefill_risk:
            late += risk * (self._late(ask, node, before_s + compute_s * cost.prefill_excess) - late)
        return PrefillLeg(
            node=node,
            queue_s=queue_s,
            compute_s=compute_s,
            cached_tokens=cached,
            stall_s=stall_s,
            late=late,
            miss_s=config.miss_s * late,
            transfer_fixed_s=fixed_s,
            transfer_token_s=token_s,
            transfer_tail_s=fixed_s + token_s * info.block_size,
            fetch=fetch,
        )

    @staticmethod
    def _late(ask: Ask, node: Node, ttft_s: float) -> float:
        target_s = ask.request.slo.ttft_s
        if target_s is None or ask.request.output_ids:
            return 0.0
        left_s, rest_s = target_s - ask.waited_s, ttft_s - ask.waited_s
        return node.ttft_errors.chance_above((left_s + OVERHEAD_S) / (rest_s + OVERHEAD_S))

    def decode_leg(self, ask: Ask, node: Node, after_s: float) -> DecodeLeg:
        config, cost = self._config, node.cost
        tokens = ask.request.prefill_tokens
        cached = ask.chains.matched_tokens(node.prefixes)
        expected = ask.expected_output_tokens
        rows, context = node.decode_at(after_s, expected, config.damping)
        limit = node.load.max_running or rows + 1
        factor = cost.decode_factor(config.quantile)
        after = cost.decode_mean_s(min(rows + 1, limit), context + tokens)
        before = cost.decode_mean_s(min(rows, limit), context) if rows else after
        tpot_s = after * factor
        ahead = rows + 1 - limit  # how many must leave before the newcomer runs
        wait_s = ahead * tpot_s * expected / limit if ahead > 0 else 0.0
        slowdown_s = max(0.0, after - before)
        impact_s = config.decode_weight * expected * (tpot_s + rows * slowdown_s)
        harm = self._harm(node, before * factor, tpot_s) if rows else 0.0
        waits_s, target_s = wait_s / max(1.0, expected - 1), ask.request.slo.tpot_s
        slow = _slow(node.tpot_errors, target_s, tpot_s + waits_s)
        if risk := cost.decode_risk:
            slow += risk * (_slow(node.tpot_errors, target_s, tpot_s * cost.decode_excess + waits_s) - slow)
        miss_s = config.miss_s * (slow + harm)
        return DecodeLeg(node, wait_s, tpot_s, impact_s, tokens - cached, miss_s, slow, harm)

    @staticmethod
    def _harm(node: Node, before_s: float, after_s: float) -> float:
        """How many of those there will be too slow with the newcomer, and would not be without."""
        errors = node.tpot_errors
        return sum(
            count * max(0.0, _slow(errors, target_s, after_s) - _slow(errors, target_s, before_s))
            for target_s, count in node.decode.targets.items()
        )

    def pair(self, ask: Ask, prefill: PrefillLeg, decode: DecodeLeg, legs_s: float) -> Scored:
        exposed_s = 0.0 if prefill.node is decode.node else _exposed_s(ask, prefill, decode)
        score_s = legs_s + exposed_s
        slow = decode.slow
        if (target_s := ask.request.slo.tpot_s) is not None and exposed_s > 0.0:
            each_s = (decode.wait_s + exposed_s) / max(1.0, ask.expected_output_tokens - 1)
            slow = max(slow, _slow(decode.node.tpot_errors, target_s, decode.tpot_s + each_s))
            slow = max(slow, _slow_start(ask, decode, target_s, exposed_s))
            score_s += self._config.miss_s * (slow - decode.slow)
        gain = (1.0 - prefill.late) * (1.0 - slow) - decode.harm
        return Scored(prefill, decode, exposed_s, score_s, gain)


def _slow(errors: Residuals, target_s: float | None, tpot_s: float) -> float:
    if target_s is None or tpot_s <= 0.0:  # a fit may say that a batch costs nothing
        return 0.0
    return errors.chance_above(target_s / tpot_s)


def _slow_start(ask: Ask, decode: DecodeLeg, target_s: float, exposed_s: float) -> float:
    """The chance that the answer is over before it has made good the wait for its second token: for the
    transfer, and for the step under way, which may have just begun or be about to end."""
    node, step_s = decode.node, decode.tpot_s
    if node.prefill_requests and (tightest_s := node.decode.tightest_s) is not None:
        step_s = max(step_s, TPOT_SHARE * tightest_s)  # as long as steps with prompts are made
    if not ask.lengths or step_s <= 0.0:
        return 0.0
    spare_s = target_s - step_s
    most = (exposed_s + decode.wait_s + step_s) / step_s
    late = [
        min(1.0, max(0.0, most - (tokens - 1) * spare_s / step_s)) for tokens in ask.lengths if tokens > 1
    ]
    return sum(late) / len(ask.lengths)


def _exposed_s(ask: Ask, prefill: PrefillLeg, decode: DecodeLeg) -> float:
    """What of the transfer is left when the prompt's computation ends. A link makes its transfers one after
    another, each as soon as there is something to send."""
    starts_s = ask.now + prefill.begin_s
    free_s = max(starts_s, prefill.node.sending_until_s, decode.node.receiving_until_s)
    whole_s = prefill.transfer_fixed_s + prefill.transfer_token_s * decode.new_tokens
    return max(free_s + whole_s - starts_s - prefill.compute_s, prefill.transfer_tail_s)


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
