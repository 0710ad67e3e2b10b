"""Log probabilities of the model's own distribution: before temperature, penalties, bias and filters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baton.core.batch import LOGPROB_FLOOR, TokenLogprobs
from baton.engine.sampler.choose import top_ids

Floats = NDArray[np.float64]


def token_logprobs(logits: Floats, token_id: int, count: int) -> TokenLogprobs:
    """Logprobs of `token_id` and of the `count` most likely tokens. logits: [vocab].

    The list is best first, lowest id first among equals, and has min(count, vocab) entries whether the chosen
    token is among them or not. log(0) is given as LOGPROB_FLOOR, and so is everything where NaN leaves no
    distribution (with an empty list).
    """
    best = float(logits.max())
    if np.isnan(best):
        return TokenLogprobs(token_id, LOGPROB_FLOOR)
    if np.isinf(best):  # all -inf: nothing is likely; some +inf: those share everything
        logits = np.where(logits == np.inf, 0.0, -np.inf)
        best = 0.0
    total = float(np.exp(logits - best).sum())
    norm = best + float(np.log(total)) if total else 0.0
    top: tuple[tuple[int, float], ...] = ()
    if count:
        ids = top_ids(logits, min(count, len(logits)))
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        top = tuple((int(i), _floored(float(logits[i]) - norm)) for i in ids)
    return TokenLogprobs(token_id, _floored(float(logits[token_id]) - norm), top)


def _floored(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR)
