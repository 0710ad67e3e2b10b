"""What a node says of itself to routers."""

from __future__ import annotations

from enum import Enum

from baton.core.value import value


class Role(Enum):
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        return self is not Role.PREFILL


@value
class LoadReport:
    """State of one node at one instant of its own life. seq grows by one per report: older ones are stale.

    waiting/running: requests. waiting_tokens: prompt tokens not yet prefilled; waiting_work: their attention,
    the sum over those prompts of tokens x (context before them + tokens / 2). blocks count KV blocks;
    free includes idle cached ones. context_tokens: KV tokens the decode batch attends to. arrived: ids of
    requests whose prompts are in these figures, and were not in the report before. age_s: how long before it
    was sent all this was so: what came since then is not in it, and time has passed.
    """

    seq: int
    role: Role
    draining: bool = False
    waiting: int = 0
    running: int = 0
    exporting: int = 0  # prefilled, KV not yet handed off
    reserved: int = 0  # tickets given, not yet committed
    waiting_tokens: int = 0
    waiting_work: int = 0
    context_tokens: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    block_size: int = 0
    quarantined: int = 0
    max_running: int = 0
    steps: int = 0
    age_s: float = 0.0
    prefill_samples: tuple[
        tuple[int, int, float], ...
    ] = ()  # (new tokens, context tokens, seconds) since last
    decode_samples: tuple[tuple[int, int, float], ...] = ()  # (rows, context tokens, seconds) since last
    transfer_samples: tuple[tuple[int, float], ...] = ()  # (bytes, seconds) since last
    arrived: tuple[str, ...] = ()
