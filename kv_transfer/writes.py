"""A piece of a transfer and how it ended. Pure values, apart from `api`, which needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from baton.core.value import value
from baton.kv_transfer.layout import Part


@value
class Write:
    """One piece of a transfer: tokens [start, end) from local blocks into the target's.

    src_blocks / dst_blocks: block ids by position; src_blocks[0] holds position src_first (a multiple of the
    source's block size), dst_blocks[0] position dst_first (of the target's). write_id is unique per
    transport; transfer_id is the hand-off's, and the target drops writes of transfers it did not open (both:
    unsigned, 64 bit). part: only these layers and heads (see `layout.shares`); None: all that both hold.
    """

    write_id: int
    transfer_id: int
    start: int
    end: int
    src_blocks: Sequence[int]
    src_first: int
    dst_blocks: Sequence[int]
    dst_first: int
    part: Part | None = None


class Outcome(Enum):
    APPLIED = "applied"  # the bytes are in the target's pool
    CANCELLED = "cancelled"  # not all applied, and nothing more will be written
    FAILED = "failed"  # not all applied, and nothing more will be written; see error


@value
class Completion:
    """The end of one Write: exactly one per submit. seconds: from the first byte to the target's word."""

    write_id: int
    transfer_id: int
    outcome: Outcome
    payload_bytes: int = 0
    seconds: float = 0.0
    error: str = ""
