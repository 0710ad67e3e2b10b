"""What bounds a prefill scheduler, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.value import value


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Bounds of the prompt phase.

    max_model_len: prompt and output, tokens. max_batch_tokens: of one step. enough_tokens: so many cost
    little more per token than a full step's, so it ends with a prompt that ends. chunk_tokens: most tokens of
    one prompt in a step while others want some too. max_waiting: queued requests. max_running: prompts in
    computation. max_exporting, max_exporting_share: prefilled sequences held for their hand-off, and the
    share of the pool that they may hold; at either no new export starts (below 1 where decode shares the
    pool). max_bypass: how many later prompts may start before one that waits for blocks. token_s: predicted
    seconds per prompt token, until steps were measured. order: "slack" or "fcfs". patience: a prompt may be
    overtaken for at most so many times its own predicted time. priority_s: a step of priority is worth so
    many seconds of waiting. late_share, late_wait_s: one that is behind because it cannot meet its target
    gets that share of the tokens after so long.
    """

    max_model_len: int
    max_batch_tokens: int = 2048
    enough_tokens: int = 256
    chunk_tokens: int = 512
    max_waiting: int = 256
    max_running: int = 16
    max_exporting: int = 64
    max_exporting_share: float = 1.0
    max_bypass: int = 64
    token_s: float = 0.001
    order: str = "slack"
    patience: float = 4.0
    priority_s: float = 30.0
    late_share: float = 0.1
    late_wait_s: float = 30.0


@value
class PrefillStats:
    waiting: int
    running: int
    exporting: int  # prefilled or ended, KV still held for a hand-off
    waiting_tokens: int  # prompt tokens not yet computed, of waiting and running
    waiting_work: int  # their attention: tokens x (context before them + tokens / 2), of each prompt
    prefix_queries: int  # prompt tokens of all requests that started, each request counted once
    prefix_hits: int  # of these, found in the cache
    preemptions: int
