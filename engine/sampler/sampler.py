"""The one logits pipeline: whoever needs a token from logits, for one position or several, calls this."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.batch import Row, TokenLogprobs
from baton.engine.sampler.choose import sample
from baton.engine.sampler.edits import edited, has_edits
from baton.engine.sampler.logprobs import token_logprobs
from baton.engine.sampler.noise import uniform

NO_TOKEN = -1


class Sampler:
    """Chooses tokens. Stateless: the result of a row depends on that row's logits and Row alone, bit for bit.

    Several rows may belong to one sequence (the positions of a drafted continuation): each brings its own
    `history`, and the output position len(history) - prompt_len selects its noise.
    """

    def __init__(self, vocab_size: int) -> None:
        """vocab_size: ids that exist. Logits may be wider (padded weights); the rest is never looked at."""
        self.vocab_size = vocab_size

    def __call__(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[tuple[int, TokenLogprobs | None]]:
        """One (token id, logprobs if asked for) per row. logits: [len(rows), >= vocab_size].

        A row whose logits hold NaN, or nothing but -inf, has no distribution: it gets (NO_TOKEN, None), and
        the caller fails that request alone. Any float dtype, any device.
        """
        if not rows:
            return []
        table = self._host(logits)
        best = table.argmax(axis=1)  # the first of equal maxima; the first NaN if there is one
        ok = table[np.arange(len(rows)), best] > -np.inf  # False for NaN
        return [
            self._one(table[i], row, int(best[i])) if ok[i] else (NO_TOKEN, None)
            for i, row in enumerate(rows)
        ]

    def prompt_logprobs(
        self, logits: torch.Tensor, next_ids: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        """Logprobs of the prompt token that follows each position, and of its k most likely ones.

        logits: [len(next_ids), >= vocab_size]. A position with NaN gives LOGPROB_FLOOR and an empty list.
        """
        table = self._host(logits)
        return tuple(
            token_logprobs(table[i].astype(np.float64), token_id, k) for i, token_id in enumerate(next_ids)
        )

    def _host(self, logits: torch.Tensor) -> NDArray[np.float32]:
        """fp32 on the host, padding cut off. A view, not a copy, when the logits are that already."""
        table: NDArray[np.float32] = logits[:, : self.vocab_size].detach().float().cpu().numpy()
        return table

    def _one(self, row_logits: NDArray[np.float32], row: Row, best: int) -> tuple[int, TokenLogprobs | None]:
        sampling = row.sampling
        edits = has_edits(row)
        if sampling.greedy and not edits:
            token_id = best
        else:
            values = row_logits.astype(np.float64)
            if edits:
                values = edited(values, row)
            if sampling.greedy:
                token_id = int(values.argmax())
            else:
                position = len(row.history) - row.prompt_len
                token_id = sample(values, sampling, uniform(sampling.seed, position))
        if sampling.logprobs is None:
            return token_id, None
        return token_id, token_logprobs(row_logits.astype(np.float64), token_id, sampling.logprobs)
