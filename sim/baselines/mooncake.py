"""Mooncake's Algorithm 1 (FAST'25) with early rejection by prediction.

For every prefill node TTFT = queue + prefill of what it lacks; where the longest cached prefix, on another
prefill node, is longer by more than a factor, that is fetched first and its transfer counted. The least wins.
Decode goes where the predicted time between tokens is least. Rejected (429) if either target would be missed,
decode's being judged at the load predicted for the moment when prefill is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton.router.ask import Ask
from baton.router.fetches import FetchLeg
from baton.router.nodes import Node, Registry
from baton.router.policy import Blocked, Choice
from baton.sim.baselines.llm_d import ttft_s
from baton.sim.baselines.separate import cached_tokens, choice, least, pools_for, refused, tpot_s

THRESHOLD = 1.0  # the paper names no value; with more than 1 fewer prefixes are fetched


class Mooncake:
    """rejects: whether to turn away what would miss its targets (the paper does). threshold: by what factor
    another node's prefix must be longer to be fetched."""

    name = "Mooncake"

    def __init__(self, *, rejects: bool = True, threshold: float = THRESHOLD) -> None:
        self._rejects = rejects
        self._threshold = threshold

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        pools = pools_for(ask, registry)
        if isinstance(pools, Blocked):
            return pools
        prefills, decodes = pools
        fetches = self._fetches(ask, prefills)
        wait_s, prefill = min(
            ((_ttft_s(ask, node, fetches.get(node)), node) for node in prefills), key=lambda pair: pair[0]
        )
        decode = least(decodes, lambda node: tpot_s(ask, node))
        if self._rejects:
            slo = ask.request.slo
            if slo.ttft_s is not None and wait_s > slo.ttft_s:
                return refused(f"predicted TTFT {wait_s:.2f} s")
            token_s = tpot_when_prefilled_s(ask, decode, wait_s)
            if slo.tpot_s is not None and token_s > slo.tpot_s:
                return refused(f"predicted TPOT {token_s * 1e3:.0f} ms")
        chosen = choice(ask, prefill, decode, len(prefills) + len(decodes))
        if (fetch := fetches.get(prefill)) is None:
            return chosen
        prediction = replace(
            chosen.prediction, prefill_s=fetch.compute_s, fetch_s=fetch.wait_s, cached_tokens=fetch.tokens
        )
        return replace(chosen, prediction=prediction, score_s=wait_s, fetch=fetch)

    def _fetches(self, ask: Ask, prefills: Sequence[Node]) -> dict[Node, FetchLeg]:
        """What each node would fetch of the longest prefix that a prefill node has."""
        cached = {node: cached_tokens(ask, node) for node in prefills}
        best = max(prefills, key=lambda node: cached[node])
        found: dict[Node, FetchLeg] = {}
        for node in prefills:
            if cached[best] > self._threshold * cached[node]:
                found[node] = _fetch(ask, node, best, cached[best], cached[node])
        return found


def _fetch(ask: Ask, node: Node, best: Node, tokens: int, cached: int) -> FetchLeg:
    total, cost = ask.request.prefill_tokens, node.cost
    send_s = best.cost.transfer_s((tokens - cached) * node.info.kv_bytes_per_token).mean_s
    compute_s = cost.prefill_s(total - tokens, tokens).mean_s
    saved_s = cost.prefill_s(total - cached, cached).mean_s - compute_s
    return FetchLeg(best, tokens, send_s, send_s, compute_s, saved_s)


def _ttft_s(ask: Ask, node: Node, fetch: FetchLeg | None) -> float:
    if fetch is None:
        return ttft_s(ask, node)
    return fetch.wait_s + node.prefill_queue_s(ask.now) + fetch.compute_s


def tpot_when_prefilled_s(ask: Ask, node: Node, prefill_s: float) -> float:
    """Each running sequence is taken to stay for the same time (the paper's uniform decode time), so by when
    the prompt is done a share of those that run now will have left."""
    stay_s = max(1e-9, tpot_s(ask, node) * ask.expected_output_tokens)
    left = min(1.0, prefill_s / stay_s)
    stay = 1.0 - left * min(1.0, node.load.running / max(1, node.decode_rows))
    context = node.context_tokens * stay + ask.request.prefill_tokens
    return node.cost.decode_step_s(round(node.decode_rows * stay) + 1, round(context)).mean_s
