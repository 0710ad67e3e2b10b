"""The one logits pipeline: whoever needs a token from logits, for one position or several, calls this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from baton.core.batch import Row, TokenLogprobs
from baton.engine.sampler.edits import RowEdits, as_entries, has_edits
from baton.engine.sampler.logprobs import token_logprobs
from baton.engine.sampler.noise import uniform
from baton.kernels.backend import Sampling, host_sampling
from baton.kernels.logits import LogitEdits
from baton.kernels.sample import NO_TOKEN, VOCAB_LIMIT, SampleParams, params

_GREEDY = (0.0, 0, 1.0, 0.0, 0.0)

__all__ = ["NO_TOKEN", "Sampler"]


class Sampler:
    """Chooses tokens. Stateless: the result of a row depends on that row's logits and Row alone, bit for bit.

    Several rows may belong to one sequence (the positions of a drafted continuation): each brings its own
    `history`, and the output position len(history) - prompt_len selects its noise.
    """

    def __init__(self, vocab_size: int, kernels: Sampling | None = None) -> None:
        """vocab_size: ids that exist. Logits may be wider (padded weights); the rest is never looked at.
        kernels: None: the host's. ValueError: more ids than they can sum up."""
        if vocab_size >= VOCAB_LIMIT:
            raise ValueError(f"a vocabulary of {vocab_size} is not below {VOCAB_LIMIT}")
        self.vocab_size = vocab_size
        self._kernels = kernels or host_sampling()

    def __call__(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[tuple[int, TokenLogprobs | None]]:
        """One (token id, logprobs if asked for) per row. logits: [len(rows), >= vocab_size].

        A row whose logits hold NaN, or nothing but -inf, has no distribution: it gets (NO_TOKEN, None), and
        the caller fails that request alone. Any float dtype, any device; `logits` is the same afterwards.
        """
        if not rows:
            return []
        table = self._table(logits)
        edits = {i: RowEdits(row) for i, row in enumerate(rows) if has_edits(row)}
        chosen = self._edited(table, edits, rows) if edits else self._choose(table, rows)
        return list(zip(chosen, self._logprobs(table, rows, chosen), strict=True))

    def prompt_logprobs(
        self, logits: torch.Tensor, next_ids: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        """Logprobs of the prompt token that follows each position, and of its k most likely ones.

        logits: [len(next_ids), >= vocab_size]. A position with NaN gives LOGPROB_FLOOR and an empty list.
        """
        return tuple(self._told(self._table(logits), next_ids, [k] * len(next_ids)))

    def _choose(self, table: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        greedy = all(row.sampling.greedy for row in rows)
        wanted = _all_greedy(len(rows)) if greedy else params([_param(row) for row in rows])
        chosen: list[int] = self._kernels.sample(table, wanted).tolist()
        return chosen

    @torch.inference_mode()
    def _edited(self, table: torch.Tensor, edits: dict[int, RowEdits], rows: Sequence[Row]) -> list[int]:
        """The choice from an edited table, which is then as before."""
        entries, before = self._apply(table, edits)
        chosen = self._choose(table, rows)
        table[entries.rows, entries.ids] = before
        return chosen

    def _logprobs(
        self, table: torch.Tensor, rows: Sequence[Row], chosen: Sequence[int]
    ) -> Sequence[TokenLogprobs | None]:
        wanted = {
            i: row.sampling.logprobs
            for i, row in enumerate(rows)
            if row.sampling.logprobs is not None and chosen[i] != NO_TOKEN
        }
        if not wanted:
            return [None] * len(rows)
        part = table if len(wanted) == len(rows) else table[list(wanted)]
        told = self._told(part, [chosen[i] for i in wanted], list(wanted.values()))
        by_row = dict(zip(wanted, told, strict=True))
        return [by_row.get(i) for i in range(len(rows))]

    def _told(
        self, table: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]
    ) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        survey = self._kernels.survey(table, min(max(counts), self.vocab_size))
        return token_logprobs(table, survey, token_ids, counts)

    def _table(self, logits: torch.Tensor) -> torch.Tensor:
        """fp32, padding cut off, rows contiguous and apart. A view where the logits are that already."""
        table = logits if logits.shape[1] == self.vocab_size else logits[:, : self.vocab_size]
        if table.dtype is not torch.float32 or table.requires_grad:
            table = table.detach().float()
        if self._kernels.on_host and table.device.type != "cpu":
            table = table.cpu()
        apart = table.stride(1) == 1 and (len(table) == 1 or table.stride(0) >= self.vocab_size)
        return table if apart else table.clone(memory_format=torch.contiguous_format)

    def _apply(self, table: torch.Tensor, edits: dict[int, RowEdits]) -> tuple[LogitEdits, torch.Tensor]:
        """Edit the table; the entries, and what the table held there before."""
        entries = _there(as_entries(edits), table.device)
        before = table[entries.rows, entries.ids]
        self._kernels.edit(table, entries)
        barren = {i: one for i, one in edits.items() if one.bans}
        for level in (1, 2):
            barren = {i: one for i, one in barren.items() if not float(table[i].amax()) > -torch.inf}
            if not barren:
                break
            again = torch.isin(entries.rows, torch.tensor(list(barren), device=table.device))
            table[entries.rows[again], entries.ids[again]] = before[again]
            self._kernels.edit(table, _there(as_entries(barren, level), table.device))
        return entries, before


@cache
def _all_greedy(rows: int) -> SampleParams:
    """What most steps want, made once: after a step's kernels the caches are empty, torch's calls dear."""
    return params([_GREEDY] * rows)


def _param(row: Row) -> tuple[float, int, float, float, float]:
    sampling = row.sampling
    if sampling.greedy:
        return _GREEDY
    noise = uniform(sampling.seed, len(row.history) - row.prompt_len)
    return sampling.temperature, max(0, sampling.top_k), sampling.top_p, sampling.min_p, noise


def _there(edits: LogitEdits, device: torch.device) -> LogitEdits:
    return edits if device.type == "cpu" else LogitEdits(*(part.to(device) for part in edits))
