"""The decoder of `llama` recorded as programs of native calls: a step costs Python two foreign calls, however
many layers there are, and allocates nothing but what is small.

A program is recorded over buffers for so many tokens, into which each step's inputs are put. A step of more
tokens, or over another pool, is recorded anew, with room to spare: rare, and a matter of milliseconds.
"""

from __future__ import annotations

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.engine.models.decoder import Decoder
from baton.engine.models.recorded_mlp import compiled
from baton.engine.models.recording import HeadRecording, Recording
from baton.engine.rotations import Rotations
from baton.kernels.attention import AttentionPlan

_LEAST_TOKENS = 16


class RecordedModel:
    """See `DecoderModel`. What it returns are views of its buffers, valid until its next call."""

    def __init__(self, config: DecoderConfig, decoder: Decoder) -> None:
        self.config = config
        self.decoder = decoder
        self._rotations = Rotations(config.rope, torch.float32, torch.device("cpu"))
        self._recording: Recording | None = None
        self._head: HeadRecording | None = None

    def forward(
        self, token_ids: torch.Tensor, plan: AttentionPlan, pool: KvPool, wanted: torch.Tensor
    ) -> torch.Tensor:
        recording = self._recording
        if recording is None or recording.pool is not pool or recording.capacity < len(token_ids):
            self._recording = None  # its buffers go before the next ones come
            capacity = _room(len(token_ids), 0 if recording is None else recording.capacity)
            recording = Recording(self.config, self.decoder, pool, self._rotations, capacity)
            self._recording = recording
        return recording.run(token_ids, plan, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self._head
        if head is None or head.capacity < len(hidden):
            head = self._head = HeadRecording(compiled(self.decoder.head), _room(len(hidden), 0, least=1))
        return head.run(hidden)


def _room(tokens: int, before: int, least: int = _LEAST_TOKENS) -> int:
    """A power of two."""
    return max(before, least, 1 << (tokens - 1).bit_length())
