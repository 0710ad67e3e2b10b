"""Whether a node had better fetch what it lacks of a prompt's KV from another than compute it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from baton.router.ask import Ask
from baton.router.nodes import OVERHEAD_S, Node

MESSAGES_S = 2 * OVERHEAD_S  # to ask, to be given room, to be told that all is there
MOST_SHARE = 0.75  # of what a fetch saves may be spent on it: predictions are no better
LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.05, 30.0


class Alone(NamedTuple):
    """A node that fetches nothing: tokens that it has, seconds until the prompt's turn, seconds to compute
    the rest. quantile: of the predictions."""

    cached: int
    queue_s: float
    compute_s: float
    quantile: float


class FetchLeg(NamedTuple):
    """tokens: at the front, whole blocks. send_s: what sending those takes that are lacking. wait_s: from
    the prompt's turn until they are there. compute_s: of the rest. saved_s: of computation."""

    lender: Node
    tokens: int
    send_s: float
    wait_s: float
    compute_s: float
    saved_s: float

    @property
    def patience_s(self) -> float:
        """As long as computing it would take: so a lender that fails at most doubles that."""
        return min(max(self.saved_s, LEAST_PATIENCE_S), MOST_PATIENCE_S)


def best_fetch(ask: Ask, node: Node, lenders: list[tuple[Node, int]], alone: Alone) -> FetchLeg | None:
    """The fetch after which the prompt is done first; None: computing all that is lacking is as fast.
    lenders: as `Lenders.of` gives."""
    if alone.compute_s <= MESSAGES_S:
        return None
    best: FetchLeg | None = None
    for lender, tokens in lenders:
        if (
            tokens <= alone.cached
            or lender is node
            or node.no_loans.get(lender.info.incarnation, 0.0) > ask.now
        ):
            continue
        leg = _leg(ask, node, alone, lender, tokens)
        if leg.wait_s > MOST_SHARE * leg.saved_s:
            continue
        if best is None or leg.wait_s + leg.compute_s < best.wait_s + best.compute_s:
            best = leg
    return best


def _leg(ask: Ask, node: Node, alone: Alone, lender: Node, tokens: int) -> FetchLeg:
    compute_s = node.cost.prefill_at(alone.quantile, ask.request.prefill_tokens - tokens, tokens)
    fixed_s, byte_s = lender.cost.transfer_line(alone.quantile)
    send_s = fixed_s + byte_s * node.info.kv_bytes_per_token * (tokens - alone.cached)
    free_s = max(ask.now, lender.sending_until_s, node.receiving_until_s) - ask.now
    comes_s = _turn_s(lender) + _turn_s(node) + free_s + send_s + MESSAGES_S
    return FetchLeg(
        lender, tokens, send_s, max(0.0, comes_s - alone.queue_s), compute_s, alone.compute_s - compute_s
    )


def _turn_s(node: Node) -> float:
    """Until its engine listens: a step of what runs there, as long as the last one that it told of."""
    step_s = 0.0
    if rows := node.decode_rows:
        step_s += node.cost.decode_mean_s(rows, node.context_tokens)
    if node.prefill_requests:
        samples = node.load.prefill_samples
        step_s += samples[-1][2] if samples else node.cost.prefill_token_s() * node.cost.usual_tokens
    return step_s
