"""SGLang gateway's cache_aware: follow the prefix while the nodes are in balance, else the shortest queue.

Out of balance: max - min > 32 requests and max > 1.1 min. Follow: the best match covers more than half of the
prompt; else the least loaded. Its decode side is power of two, the gateway's usual choice in P/D mode. The
gateway guesses caches from what it sent; here it knows them from the nodes' events, which can only help it.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.ask import Ask
from baton.router.nodes import Node
from baton.sim.baselines.separate import Separate, cached_tokens, least, requests
from baton.sim.baselines.simple import power_of_two_pick

CACHE_THRESHOLD = 0.5
BALANCE_ABS = 32
BALANCE_REL = 1.1


def cache_aware(seed: int) -> Separate:
    return Separate("cache_aware", prefix_or_shortest, power_of_two_pick(seed))


def prefix_or_shortest(ask: Ask, nodes: Sequence[Node]) -> Node:
    counts = [requests(node) for node in nodes]
    most, fewest = max(counts), min(counts)
    if most - fewest > BALANCE_ABS and most > BALANCE_REL * fewest:
        return least(nodes, requests)
    best = max(nodes, key=lambda node: cached_tokens(ask, node))
    if cached_tokens(ask, best) > CACHE_THRESHOLD * ask.request.prefill_tokens:
        return best
    return least(nodes, requests)
