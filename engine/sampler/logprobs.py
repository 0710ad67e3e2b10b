"""Log probabilities of the model's own distribution: before temperature, penalties, bias and filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from baton.core.batch import LOGPROB_FLOOR, TokenLogprobs
from baton.kernels.sample import Survey
from baton.kernels.sample.weights import ONE


def token_logprobs(
    logits: torch.Tensor, survey: Survey, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Per row that of its token, and of its `counts` most likely ones. logits: [rows, vocab] as surveyed.

    The list is best first, lowest id first among equals, whether the token is among them or not. log(0) is
    given as LOGPROB_FLOOR, and so is everything where NaN leaves no distribution (with an empty list).
    """
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
    readable = torch.where(survey.best.isnan()[:, None], 0, survey.top)
    values = logits.gather(1, readable).tolist()
    rows = zip(survey.best.tolist(), survey.mass.tolist(), readable.tolist(), values, strict=True)
    return [
        _one(token_id, logit, _Scale(best, mass), list(zip(ids[:count], tops[:count], strict=True)))
        for (best, mass, ids, tops), token_id, logit, count in zip(
            rows, token_ids, chosen, counts, strict=True
        )
    ]


class _Scale:
    """From a row's logits to log probabilities."""

    def __init__(self, best: float, mass: int) -> None:
        self.best = best
        self._norm = math.log(mass / ONE) if mass else 0.0

    def __call__(self, logit: float) -> float:
        # Of an infinite best all weight is on the logits that equal it.
        below = 0.0 if logit == self.best else logit - self.best
        return max(below - self._norm, LOGPROB_FLOOR) if logit > -math.inf else LOGPROB_FLOOR


def _one(token_id: int, logit: float, scale: _Scale, top: Sequence[tuple[int, float]]) -> TokenLogprobs:
    if math.isnan(scale.best):
        return TokenLogprobs(token_id, LOGPROB_FLOOR)
    return TokenLogprobs(token_id, scale(logit), tuple((i, scale(value)) for i, value in top))
