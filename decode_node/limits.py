"""What bounds a decode scheduler, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.value import value


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """max_model_len: prompt and output, tokens. max_running: sequences in the batch; a step's token budget
    must be at least this. chunk_tokens: most tokens of one preempted sequence recomputed in a step.
    priority_s: a step of priority is worth so many seconds of waiting."""

    max_model_len: int
    max_running: int = 64
    chunk_tokens: int = 512
    priority_s: float = 30.0


@value
class DecodeStats:
    waiting: int  # committed or preempted, not in the batch
    running: int
    context_tokens: int  # KV tokens the batch attends to
    preemptions: int  # KV given back, so far
    recomputed_tokens: int  # so far
