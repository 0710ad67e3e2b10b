"""Runs a batch on torch: clear, forward, logits where they are needed, tokens. No state between steps."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from itertools import chain

import torch

from baton.core.batch import Batch, Row, RowOutput, StepOutput, TokenLogprobs
from baton.core.model import ModelInfo
from baton.engine.kv_pool import KvPool
from baton.engine.models.base import DecoderModel
from baton.engine.sampler import NO_TOKEN, Sampler
from baton.kernels.attention import RowSpan, make_plan
from baton.kernels.backend import Sampling

# Logits are made for so many positions at a time: a long prompt's whole [tokens, vocab] would take gigabytes.
_LOGIT_ROWS = 64
_NOTHING = torch.empty(0)


class TorchRunner:
    """A `ModelRunner`. All about a request comes in its Row. dtype: of activations. sampling: see `Ops`."""

    def __init__(
        self,
        model: DecoderModel,
        pool: KvPool,
        info: ModelInfo,
        dtype: torch.dtype,
        sampling: Sampling | None = None,
    ) -> None:
        self.info = info
        self.pool = pool
        self._dtype = dtype
        self._model = model
        self._sampler = Sampler(info.vocab_size, sampling)

    def run(self, batch: Batch) -> StepOutput:
        """See `ModelRunner.run`. A row whose logits are NaN gets no token."""
        begun = time.perf_counter()
        self.pool.clear(batch.clear)
        rows = batch.rows
        wanted = _Wanted(rows)
        forward_s = 0.0
        hidden = _NOTHING
        if batch.tokens:
            spans = [RowSpan(row.start, row.length, row.block_table) for row in rows]
            plan = make_plan(spans, self.pool.shape.block_size, self._dtype, batch.shared)
            token_ids = array("q", list(chain.from_iterable(row.token_ids for row in rows)))
            places = array("q", wanted.tokens)
            entered = time.perf_counter()
            hidden = self._model.forward(token_ids, plan, self.pool, places)
            forward_s = time.perf_counter() - entered
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        if wanted.prompts:
            prompt_logprobs, seconds = self._prompt_logprobs(rows, wanted, hidden)
            forward_s += seconds
        chosen, seconds = self._choose(rows, wanted, hidden)
        forward_s += seconds
        outputs = tuple(
            RowOutput(row.seq, token_id, logprobs, prompt_logprobs.get(i, ()))
            for i, (row, (token_id, logprobs)) in enumerate(zip(rows, chosen, strict=True))
        )
        return StepOutput(
            rows=outputs,
            duration_s=time.perf_counter() - begun,
            forward_s=forward_s,
            tokens=batch.tokens,
            context_tokens=sum(row.context for row in rows),
        )

    def close(self) -> None:
        """Nothing to give back: the pool's memory belongs to whoever made it."""

    def _choose(
        self, rows: Sequence[Row], wanted: _Wanted, hidden: torch.Tensor
    ) -> tuple[list[tuple[int | None, TokenLogprobs | None]], float]:
        chosen: list[tuple[int | None, TokenLogprobs | None]] = [(None, None)] * len(rows)
        forward_s = 0.0
        for at in range(0, len(wanted.samples), _LOGIT_ROWS):
            part = wanted.samples[at : at + _LOGIT_ROWS]
            logits, seconds = self._logits(hidden, wanted, [place for _, place in part])
            forward_s += seconds
            tokens = self._sampler(logits, [rows[i] for i, _ in part])
            for (i, _), token in zip(part, tokens, strict=True):
                if token[0] != NO_TOKEN:
                    chosen[i] = token
        return chosen, forward_s

    def _prompt_logprobs(
        self, rows: Sequence[Row], wanted: _Wanted, hidden: torch.Tensor
    ) -> tuple[dict[int, tuple[TokenLogprobs, ...]], float]:
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        forward_s = 0.0
        for i, places in wanted.prompts.items():
            row = rows[i]
            targets = row.history[row.start + 1 : row.start + 1 + len(places)]
            pieces: list[TokenLogprobs] = []
            for at in range(0, len(places), _LOGIT_ROWS):
                logits, seconds = self._logits(hidden, wanted, places[at : at + _LOGIT_ROWS])
                forward_s += seconds
                count = row.sampling.prompt_logprobs or 0
                pieces += self._sampler.prompt_logprobs(logits, targets[at : at + _LOGIT_ROWS], count)
            found[i] = tuple(pieces)
        return found, forward_s

    def _logits(
        self, hidden: torch.Tensor, wanted: _Wanted, places: Sequence[int]
    ) -> tuple[torch.Tensor, float]:
        entered = time.perf_counter()
        if len(places) == len(wanted.tokens):  # all of them, then, in order
            states = hidden
        else:
            states = hidden[places[0] : places[-1] + 1] if _consecutive(places) else hidden[list(places)]
        logits = self._model.logits(states)
        return logits, time.perf_counter() - entered


class _Wanted:
    """Which tokens of the step need logits.

    tokens: their indices in the step; samples: (row, place in `tokens`) of rows that sample; prompts: for
    each row that wants prompt logprobs the places of its prompt positions, from the row's first on.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.tokens: list[int] = []
        self.samples: list[tuple[int, int]] = []
        self.prompts: dict[int, range] = {}
        first = 0
        for i, row in enumerate(rows):
            followed = _prompt_positions(row)
            if followed:
                self.prompts[i] = range(len(self.tokens), len(self.tokens) + followed)
                self.tokens += range(first, first + followed)
            if row.sample and row.length:
                # The last prompt position is followed by no prompt token, so it is never wanted twice.
                self.samples.append((i, len(self.tokens)))
                self.tokens.append(first + row.length - 1)
            first += row.length


def _prompt_positions(row: Row) -> int:
    """How many of the row's tokens, from its first on, are followed by a known prompt token."""
    if row.sampling.prompt_logprobs is None:
        return 0
    known = min(row.prompt_len, len(row.history))
    return max(0, min(row.length, known - 1 - row.start))


def _consecutive(places: Sequence[int]) -> bool:
    return places[-1] - places[0] + 1 == len(places)
