"""The one logits pipeline: whoever needs a token from logits, for one position or several, calls this."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from baton.core.batch import Row, TokenLogprobs
from baton.engine.sampler.edits import RowEdits, as_entries, has_edits
from baton.engine.sampler.logprobs import token_logprobs
from baton.engine.sampler.noise import uniform
from baton.kernels.backend import Sampling, host_sampling
from baton.kernels.logits import LogitEdits
from baton.kernels.sample import NO_TOKEN, VOCAB_LIMIT, Choice

_GREEDY = Choice(0.0, 0, 1.0, 0.0, 0.0)
_DEVICE_ROWS = 16  # an estimate; the logits of fewer are brought to the host, which is sooner done with one

__all__ = ["NO_TOKEN", "Sampler"]


class Sampler:
    """Chooses tokens. Stateless: the result of a row depends on that row's logits and Row alone, bit for bit.

    Several rows may belong to one sequence (the positions of a drafted continuation): each brings its own
    `history`, and the output position len(history) - prompt_len selects its noise.
    """

    def __init__(self, vocab_size: int, on_device: Sampling | None = None) -> None:
        """vocab_size: ids that exist. Logits may be wider (padded weights); the rest is never looked at.
        on_device: for batches of logits that are elsewhere than on the host. ValueError: more ids than have a
        sum."""
        if vocab_size >= VOCAB_LIMIT:
            raise ValueError(f"a vocabulary of {vocab_size} is not below {VOCAB_LIMIT}")
        self.vocab_size = vocab_size
        self._on_host, self._on_device = host_sampling(), on_device
        self._seen: weakref.ref[torch.Tensor] | None = None  # logits that are a table as they are

    def __call__(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[tuple[int, TokenLogprobs | None]]:
        """One (token id, logprobs if asked for) per row. logits: [len(rows), >= vocab_size].

        A row whose logits hold NaN, or nothing but -inf, has no distribution: it gets (NO_TOKEN, None), and
        the caller fails that request alone. Any float dtype, any device; `logits` is the same afterwards.
        """
        if not rows:
            return []
        table = self._table(logits)
        choices = [_choice(row) for row in rows]
        edits = {i: RowEdits(row) for i, row in enumerate(rows) if has_edits(row)}
        chosen = table.chosen_from_edited(edits, choices) if edits else table.chosen(choices)
        if all(row.sampling.logprobs is None for row in rows):
            return [(token_id, None) for token_id in chosen]
        return list(zip(chosen, _logprobs(table, rows, chosen), strict=True))

    def prompt_logprobs(
        self, logits: torch.Tensor, next_ids: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        """Logprobs of the prompt token that follows each position, and of its k most likely ones.

        logits: [len(next_ids), >= vocab_size]. A position with NaN gives LOGPROB_FLOOR and an empty list.
        """
        return tuple(self._table(logits).told(next_ids, [k] * len(next_ids)))

    def _table(self, logits: torch.Tensor) -> _Table:
        if self._seen is not None and self._seen() is logits:
            return _Table(logits, self._on_host)
        rows, width = logits.shape
        table = logits if width == self.vocab_size else logits[:, : self.vocab_size]
        if table.dtype is not torch.float32 or table.requires_grad:
            table = table.detach().float()
        kernels = self._on_host
        if self._on_device is not None and rows >= _DEVICE_ROWS:
            kernels = self._on_device
        elif not table.is_cpu:
            table = table.cpu()
        row_stride, stride = table.stride()
        apart = stride == 1 and (rows == 1 or row_stride >= self.vocab_size)
        if table is logits and apart and kernels is self._on_host:
            self._seen = weakref.ref(logits)
        return _Table(table if apart else table.clone(memory_format=torch.contiguous_format), kernels)


class _Table:
    """logits: [rows, vocab] fp32, padding cut off, rows contiguous and apart: the model's own where they are
    that already, else a copy. kernels: for where they are."""

    __slots__ = ("kernels", "logits")

    def __init__(self, logits: torch.Tensor, kernels: Sampling) -> None:
        self.logits = logits
        self.kernels = kernels

    def chosen(self, choices: Sequence[Choice]) -> list[int]:
        return self.kernels.sample(self.logits, choices)

    @torch.inference_mode()
    def chosen_from_edited(self, edits: dict[int, RowEdits], choices: Sequence[Choice]) -> list[int]:
        """The table is then as before."""
        entries, before = self._apply(edits)
        chosen = self.chosen(choices)
        self.logits[entries.rows, entries.ids] = before
        return chosen

    def told(self, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        survey = self.kernels.survey(self.logits, min(max(counts), self.logits.shape[1]))
        return token_logprobs(self.logits, survey, token_ids, counts)

    def some(self, rows: Sequence[int]) -> _Table:
        return self if len(rows) == len(self.logits) else _Table(self.logits[list(rows)], self.kernels)

    def _apply(self, edits: dict[int, RowEdits]) -> tuple[LogitEdits, torch.Tensor]:
        """The entries, and what the table held there before."""
        table = self.logits
        entries = _there(as_entries(edits), table.device)
        before = table[entries.rows, entries.ids]
        self.kernels.edit(table, entries)
        barren = {i: one for i, one in edits.items() if one.bans}
        for level in (1, 2):
            barren = {i: one for i, one in barren.items() if not float(table[i].amax()) > -torch.inf}
            if not barren:
                break
            again = torch.isin(entries.rows, torch.tensor(list(barren), device=table.device))
            table[entries.rows[again], entries.ids[again]] = before[again]
            self.kernels.edit(table, _there(as_entries(barren, level), table.device))
        return entries, before


def _choice(row: Row) -> Choice:
    sampling = row.sampling
    if sampling.greedy:
        return _GREEDY
    noise = uniform(sampling.seed, len(row.history) - row.prompt_len)
    return Choice(sampling.temperature, max(0, sampling.top_k), sampling.top_p, sampling.min_p, noise)


def _logprobs(table: _Table, rows: Sequence[Row], chosen: Sequence[int]) -> Sequence[TokenLogprobs | None]:
    wanted = {
        i: row.sampling.logprobs
        for i, row in enumerate(rows)
        if row.sampling.logprobs is not None and chosen[i] != NO_TOKEN
    }
    told = table.some(list(wanted)).told([chosen[i] for i in wanted], list(wanted.values()))
    by_row = dict(zip(wanted, told, strict=True))
    return [by_row.get(i) for i in range(len(rows))]


def _there(edits: LogitEdits, device: torch.device) -> LogitEdits:
    return edits if device.type == "cpu" else LogitEdits(*(part.to(device) for part in edits))
