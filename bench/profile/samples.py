"""What was measured of a node."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """A prompt alone on a node: its tokens, steps it took, the node's seconds for it, seconds until the
    client had its first token."""

    tokens: int
    steps: int
    node_s: float
    ttft_s: float

    @property
    def pairs(self) -> float:
        """(token, token before it)."""
        return self.tokens * (self.tokens - 1) / 2


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """A step's mean seconds with so many sequences; context: KV tokens of all of them, in the middle."""

    rows: int
    context: float
    step_s: float


@dataclass(frozen=True, slots=True)
class TransferSample:
    payload_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PromptBeside:
    """A prompt's mean seconds while another node of its host ran other steps all the time, and alone. rows:
    of the decode beside it; 0: a prompt."""

    rows: int
    alone_s: float
    beside_s: float


@dataclass(frozen=True, slots=True)
class DecodeBeside:
    """Decode steps alone, and while another node of the host ran steps during `share` of the time; of
    prompts, or of as many rows."""

    prompts: bool
    alone: DecodeSample
    beside: DecodeSample
    share: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """While this many nodes of a host all run steps: prompts, and decode of one row."""

    nodes: int
    prompts: PromptBeside
    decode: DecodeBeside


@dataclass(slots=True)
class Samples:
    prefill: list[PrefillSample] = field(default_factory=list)
    decode: list[DecodeSample] = field(default_factory=list)
    transfer: list[TransferSample] = field(default_factory=list)
    prompt_beside: list[PromptBeside] = field(default_factory=list)
    decode_beside: list[DecodeBeside] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
