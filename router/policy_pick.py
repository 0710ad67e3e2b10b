"""Pickers: which of the cheapest pairs to take."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from baton.router.policy import Ask, Scored


def spread(ask: Ask, close: Sequence[Scored]) -> Scored:
    """The pair that a hash of the request's id picks: a prefill node first, then a decode node for it.

    Every router, seeing equal nodes, thus spreads its requests over them, and nobody needs dice.
    """
    if len(close) == 1:
        return close[0]
    salt = f"{ask.request.id}:{ask.request.attempt}:"
    prefill_id = max({pair.prefill.node.id: None for pair in close}, key=lambda name: _rank(salt, name))
    there = [pair for pair in close if pair.prefill.node.id == prefill_id]
    salt += prefill_id + ":"
    return max(there, key=lambda pair: _rank(salt, pair.decode.node.id))


def _rank(salt: str, node_id: str) -> tuple[int, str]:
    return crc32(f"{salt}{node_id}".encode()), node_id
