"""Dynamo's KV router: cost = scale * max(active prefill + incoming - overlap, 0) + decode blocks; least wins.

All in KV blocks: prompt blocks being computed on the node, the newcomer's, less what the node has cached of
it, and the blocks that sequences hold there. Conditional disaggregation: a prompt of which little is new runs
where it decodes, if decode nodes may prefill at all (role both).
"""

from __future__ import annotations

from baton.core.load import Role
from baton.router.ask import Ask
from baton.router.nodes import Node, Registry
from baton.router.policy import Blocked, Choice
from baton.sim.baselines.separate import cached_tokens, choice, least, pools_for

LOCAL_TOKENS = 2048  # shorter new parts may be prefilled on the decode node,
LOCAL_SHARE = 0.7  # if they are no more than this of the prompt,
BUSY_TOKENS = 16384  # or if this much waits on the best prefill node


class Dynamo:
    """scale: what an uncached prompt block counts against a decode block (1 in its releases)."""

    name = "Dynamo"

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        pools = pools_for(ask, registry)
        if isinstance(pools, Blocked):
            return pools
        prefills, decodes = pools
        prefill = least(prefills, lambda node: self.cost_blocks(ask, node))
        decode = least(decodes, lambda node: self.cost_blocks(ask, node, overlap=False))
        if decode.load.role is Role.BOTH and stays_local(ask, prefill, decode):
            prefill = decode
        return choice(ask, prefill, decode, len(prefills) + len(decodes))

    def cost_blocks(self, ask: Ask, node: Node, *, overlap: bool = True) -> float:
        """overlap: whether the newcomer is to be prefilled there."""
        held = node.load.blocks_total - node.blocks_free  # free blocks may hold idle cached KV
        if not overlap:
            return float(held)
        incoming = ask.request.prefill_tokens - cached_tokens(ask, node)
        active = waiting_tokens(ask, node)
        return self._scale * max(active + incoming, 0) / node.info.block_size + held


def waiting_tokens(ask: Ask, node: Node) -> float:
    """Prompt tokens that the node has yet to compute, of what it reported or was sent since."""
    return node.prefill_queue_s(ask.now) / node.cost.prefill_token_s()


def stays_local(ask: Ask, prefill: Node, decode: Node) -> bool:
    tokens = ask.request.prefill_tokens
    new = tokens - cached_tokens(ask, decode)
    if new >= LOCAL_TOKENS:
        return False
    return new < LOCAL_SHARE * tokens or waiting_tokens(ask, prefill) > BUSY_TOKENS
