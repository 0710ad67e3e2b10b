"""Pickers: which of the scored pairs to take."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from baton.router.policy import Ask, Picker, Scored


def spread_ties(tie_fraction: float) -> Picker:
    """The cheapest pair; among those within `tie_fraction` of it one that a hash of the request's id picks.

    Every router, seeing equal nodes, thus spreads its requests over them, and nobody needs dice.
    """

    def pick(ask: Ask, scored: Sequence[Scored]) -> Scored:
        lowest = min([pair.score_s for pair in scored])
        limit = lowest + max(abs(lowest) * tie_fraction, 1e-9)
        close = [pair for pair in scored if pair.score_s <= limit]
        if len(close) == 1:
            return close[0]
        salt = f"{ask.request.id}:{ask.request.attempt}:"
        return max(close, key=lambda pair: _rank(salt, pair))

    return pick


def _rank(salt: str, pair: Scored) -> tuple[int, str, str]:
    p, d = pair.prefill.node.id, pair.decode.node.id
    return crc32(f"{salt}{p}:{d}".encode()), p, d
