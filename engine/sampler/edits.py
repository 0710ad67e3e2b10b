"""Everything that changes logits before a token is chosen. One row at a time, in fp64.

Order: repetition penalty, presence and frequency penalties, logit_bias, bad ids, min_tokens. Only ids that
are touched are computed on, so a row with a long history costs its history, not the vocabulary in Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baton.core.batch import Row
from baton.core.request import LOGIT_BIAS_LIMIT, SamplingParams

# Penalties may be any finite number; past this a logit is as good as banned or certain, and sums stay finite.
_HUGE = 1e300


def has_edits(row: Row) -> bool:
    """Whether `edited` could change anything for this row."""
    sampling = row.sampling
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or sampling.bad_token_ids
        or _below_min_tokens(row)
    )


def edited(logits: NDArray[np.float64], row: Row) -> NDArray[np.float64]:
    """`logits` [vocab] with the row's edits; may be changed in place. Banned ids are -inf.

    If bans and min_tokens together leave no token, min_tokens is waived for this step (the request ends
    early); if the bans alone leave none, they are: a request that forbids its whole vocabulary still gets the
    most likely tokens instead of an error in the middle of its stream.
    """
    sampling = row.sampling
    _penalize(logits, row)
    banned = _bias(logits, sampling)
    allowed = logits.copy() if banned else logits
    if banned:
        allowed[banned] = -np.inf
        if not _any_left(allowed):
            return logits
    if not _below_min_tokens(row):
        return allowed
    ended = allowed.copy()
    ended[_ending_ids(row)] = -np.inf
    return ended if _any_left(ended) else allowed


def _any_left(logits: NDArray[np.float64]) -> bool:
    return bool(logits.max() > -np.inf)


def _below_min_tokens(row: Row) -> bool:
    """min_tokens=m: output positions 0..m-1 may not end the request, position m may."""
    return len(row.history) - row.prompt_len < row.sampling.min_tokens and bool(_ending_ids(row))


def _ending_ids(row: Row) -> list[int]:
    """Ids that would end the request. With ignore_eos an EOS ends nothing, so it is not among them."""
    ids = list(row.sampling.stop_token_ids)
    if not row.sampling.ignore_eos:
        ids.extend(row.eos_token_ids)
    return ids


def _penalize(logits: NDArray[np.float64], row: Row) -> None:
    """CTRL's repetition penalty (arXiv:1909.05858, section 4.1) over prompt and output: positive logits are
    divided by it, others multiplied. Presence and frequency penalties (OpenAI's formula) over output only."""
    sampling = row.sampling
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(row.history, dtype=np.int64))
        values = logits[seen]
        with np.errstate(over="ignore"):
            scaled = np.where(
                values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
            )
        logits[seen] = np.where(np.isinf(values), values, np.clip(scaled, -_HUGE, _HUGE))
    output = row.history[row.prompt_len :]
    if (sampling.presence_penalty or sampling.frequency_penalty) and len(output):
        made, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        logits[made] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _bias(logits: NDArray[np.float64], sampling: SamplingParams) -> list[int]:
    """Add the biases; return the ids that are banned, by a bias at the lower limit or by name."""
    banned = list(sampling.bad_token_ids)
    for token_id, bias in sampling.logit_bias:
        if bias <= -LOGIT_BIAS_LIMIT:
            banned.append(token_id)
        else:
            logits[token_id] += bias
    return banned
