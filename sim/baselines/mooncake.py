"""Mooncake's Algorithm 1 (FAST'25) with early rejection by prediction.

For every prefill node TTFT = queue + prefill of what it lacks; the least wins. Where another node's cached
prefix is longer by more than a factor, the paper lets it be fetched; these nodes do not send each other
prompt caches, so what a node lacks is computed there (which spreads hot prefixes, too). Decode goes where the
predicted time between tokens is least. Rejected (429) if either target would be missed, decode's being judged
at the load predicted for the moment when prefill is done.
"""

from __future__ import annotations

from baton.router.ask import Ask
from baton.router.nodes import Node, Registry
from baton.router.policy import Blocked, Choice
from baton.sim.baselines.llm_d import ttft_s
from baton.sim.baselines.separate import choice, least, pools_for, refused, tpot_s


class Mooncake:
    """rejects: whether to turn away what would miss its targets (the paper does)."""

    name = "Mooncake"

    def __init__(self, *, rejects: bool = True) -> None:
        self._rejects = rejects

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        pools = pools_for(ask, registry)
        if isinstance(pools, Blocked):
            return pools
        prefills, decodes = pools
        prefill = least(prefills, lambda node: ttft_s(ask, node))
        decode = least(decodes, lambda node: tpot_s(ask, node))
        if self._rejects:
            slo = ask.request.slo
            wait_s = ttft_s(ask, prefill)
            if slo.ttft_s is not None and wait_s > slo.ttft_s:
                return refused(f"predicted TTFT {wait_s:.2f} s")
            token_s = tpot_when_prefilled_s(ask, decode, wait_s)
            if slo.tpot_s is not None and token_s > slo.tpot_s:
                return refused(f"predicted TPOT {token_s * 1e3:.0f} ms")
        return choice(ask, prefill, decode, len(prefills) + len(decodes))


def tpot_when_prefilled_s(ask: Ask, node: Node, prefill_s: float) -> float:
    """Each running sequence is taken to stay for the same time (the paper's uniform decode time), so by when
    the prompt is done a share of those that run now will have left."""
    stay_s = max(1e-9, tpot_s(ask, node) * ask.expected_output_tokens)
    left = min(1.0, prefill_s / stay_s)
    stay = 1.0 - left * min(1.0, node.load.running / max(1, node.decode_rows))
    context = node.context_tokens * stay + ask.request.prefill_tokens
    return node.cost.decode_step_s(round(node.decode_rows * stay) + 1, round(context)).mean_s
