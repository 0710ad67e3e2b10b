"""Everything that changes logits before a token is chosen, as entries for `kernels.logits`.

In this order: repetition penalty, presence and frequency penalties, logit_bias, bad ids, min_tokens. Only ids
that are touched become entries, so a row with a long history costs its history, not the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.batch import Row
from baton.core.request import LOGIT_BIAS_LIMIT
from baton.kernels.logits import LogitEdits

Ids = NDArray[np.int64]


def has_edits(row: Row) -> bool:
    """Whether `RowEdits` could hold anything for this row."""
    sampling = row.sampling
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or sampling.bad_token_ids
        or _below_min_tokens(row)
    )


class RowEdits:
    """One row's. ids: each once, ascending; repetition, add: see `LogitEdits`; banned, ending: which of them
    may not be chosen, and which may not be chosen yet; bans: whether there are any such."""

    def __init__(self, row: Row) -> None:
        seen, made, counts = _history(row)
        biased, bias, forbidden = _bias(row)
        ending = np.asarray(_ending_ids(row) if _below_min_tokens(row) else (), dtype=np.int64)
        banned = np.concatenate((forbidden, np.asarray(row.sampling.bad_token_ids, dtype=np.int64)))
        self.ids: Ids = _distinct(np.concatenate((seen, made, biased, banned, ending)))
        self.repetition = np.ones(len(self.ids))
        self.repetition[np.searchsorted(self.ids, seen)] = row.sampling.repetition_penalty
        self.add = np.zeros(len(self.ids))
        penalty = row.sampling.presence_penalty + row.sampling.frequency_penalty * counts
        self.add[np.searchsorted(self.ids, made)] -= penalty
        np.add.at(self.add, np.searchsorted(self.ids, biased), bias)
        self.banned, self.ending = np.zeros((2, len(self.ids)), dtype=np.bool_)
        self.banned[np.searchsorted(self.ids, banned)] = True
        self.ending[np.searchsorted(self.ids, ending)] = True
        self.bans = bool(len(banned) or len(ending))

    def waivers(self) -> Sequence[NDArray[np.bool_]]:
        """What to ban, and what instead if that leaves no token: first min_tokens is waived (the request ends
        early), then the bans themselves. A request that forbids its whole vocabulary still gets the most
        likely tokens instead of an error in the middle of its stream."""
        return (self.banned | self.ending, self.banned, np.zeros_like(self.banned))


def as_entries(edits: dict[int, RowEdits], level: int = 0) -> LogitEdits:
    """By row of the batch, with bans as `waivers` gives them at this level."""
    parts = list(edits.values())
    counts = [len(part.ids) for part in parts]
    adds = [np.where(part.waivers()[level], -np.inf, part.add) for part in parts]
    return LogitEdits(
        rows=torch.from_numpy(np.repeat(np.fromiter(edits, np.int64), counts)),
        ids=torch.from_numpy(np.concatenate([part.ids for part in parts])),
        repetition=torch.from_numpy(np.concatenate([part.repetition for part in parts])),
        add=torch.from_numpy(np.concatenate(adds)),
    )


def _distinct(ids: Ids) -> Ids:
    """Ascending. Half as long as np.unique takes, which hashes first."""
    ordered = np.sort(ids)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _below_min_tokens(row: Row) -> bool:
    """min_tokens=m: output positions 0..m-1 may not end the request, position m may."""
    return len(row.history) - row.prompt_len < row.sampling.min_tokens and bool(_ending_ids(row))


def _ending_ids(row: Row) -> list[int]:
    """Ids that would end the request. With ignore_eos an EOS ends nothing, so it is not among them."""
    ids = list(row.sampling.stop_token_ids)
    if not row.sampling.ignore_eos:
        ids.extend(row.eos_token_ids)
    return ids


def _history(row: Row) -> tuple[Ids, Ids, Ids]:
    """Ids under the repetition penalty (CTRL, arXiv:1909.05858, section 4.1: all of prompt and output); ids
    under presence and frequency penalties (OpenAI's formula: those of the output), and how often each."""
    sampling = row.sampling
    nothing = np.zeros(0, dtype=np.int64)
    seen = nothing
    if sampling.repetition_penalty != 1.0:
        seen = np.asarray(row.history, dtype=np.int64)
    output = row.history[row.prompt_len :]
    if not (sampling.presence_penalty or sampling.frequency_penalty) or not len(output):
        return seen, nothing, nothing
    made, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
    return seen, made, counts


def _bias(row: Row) -> tuple[Ids, NDArray[np.float64], Ids]:
    """Ids with their biases, and ids that a bias at the lower limit forbids."""
    pairs = row.sampling.logit_bias
    ids = np.asarray([token_id for token_id, _ in pairs], dtype=np.int64)
    bias = np.asarray([value for _, value in pairs], dtype=np.float64)
    forbidden = bias <= -LOGIT_BIAS_LIMIT
    return ids[~forbidden], bias[~forbidden], ids[forbidden]
