"""The decoder of `llama` recorded as programs of native calls: a step costs Python two foreign calls, however
many layers there are, and allocates nothing but what is small.

A program is recorded over buffers for so many tokens and positions, into which each step's inputs are put. A
step of more, or over another pool, is recorded anew, with room to spare: rare, and a matter of milliseconds.
"""

from __future__ import annotations

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.engine.models.base import Ids
from baton.engine.models.decoder import Decoder
from baton.engine.models.recorded_mlp import compiled
from baton.engine.models.recording import HeadRecording, Recording, Rows, longest
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
        self._made: tuple[torch.Tensor | None, int] = None, 0  # by the recording's last run, and its rows
        self._head: HeadRecording | None = None  # over what the recording makes
        self._other_head: HeadRecording | None = None  # over any other states

    def forward(self, token_ids: Ids, plan: AttentionPlan, pool: KvPool, wanted: Ids) -> torch.Tensor:
        recording = self._recording
        if recording is None or not recording.fits(pool, plan):
            self._recording = None  # its buffers go before the next ones come
            capacity = _room(len(token_ids), 0 if recording is None else recording.capacity)
            rotation = self._rotations.upto(longest(plan))
            recording = Recording(self.config, self.decoder, pool, rotation, capacity)
            self._recording = recording
        hidden = recording.run(token_ids, plan, wanted)
        self._made = hidden, len(wanted)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        recording, head, (made, rows) = self._recording, compiled(self.decoder.head), self._made
        if recording is not None and made is hidden:
            if self._head is None or not self._head.fits(recording.final, rows):
                self._head = HeadRecording(head, recording.final, _room(rows, 0, least=1))
            return self._head.run(rows)
        rows = len(hidden)
        if self._other_head is None or self._other_head.capacity < rows:
            capacity = _room(rows, 0, least=1)
            self._other_head = HeadRecording(head, Rows(torch.empty(capacity, hidden.shape[1])), capacity)
        self._other_head.source.upto(rows).copy_(hidden)
        return self._other_head.run(rows)


def _room(tokens: int, before: int, least: int = _LEAST_TOKENS) -> int:
    """A power of two."""
    return max(before, least, 1 << (tokens - 1).bit_length())
