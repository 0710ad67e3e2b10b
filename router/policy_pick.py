"""Pickers: which of the cheapest pairs to take."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from baton.router.nodes import Node
from baton.router.policy import Ask, Scored


def spread(ask: Ask, close: Sequence[Scored]) -> Scored:
    """The pair with the fewest requests: a prefill node first, then a decode node for it. Among equals a hash
    of the request's id picks, so that routers seeing equal nodes spread their requests without dice.
    """
    if len(close) == 1:
        return close[0]
    salt = f"{ask.request.id}:{ask.request.attempt}:"
    prefills = {pair.prefill.node.id: pair.prefill.node for pair in close}
    prefill_id = max(prefills, key=lambda name: (-_load(prefills[name]), _rank(salt, name)))
    there = [pair for pair in close if pair.prefill.node.id == prefill_id]
    salt += prefill_id + ":"
    return max(there, key=lambda pair: (-_load(pair.decode.node), _rank(salt, pair.decode.node.id)))


def _load(node: Node) -> int:
    """Requests on a node: those it reported, and this router's that no report includes yet."""
    return node.load.waiting + node.load.running + node.prefill.recent + node.decode.recent


def _rank(salt: str, node_id: str) -> tuple[int, str]:
    return crc32(f"{salt}{node_id}".encode()), node_id
