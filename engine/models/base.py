"""What the runner needs of a model, whichever way it is run."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.kv_pool import KvPool
from baton.kernels.attention import AttentionPlan

Ids = NDArray[np.int64]


class DecoderModel(Protocol):
    def forward(self, token_ids: Ids, plan: AttentionPlan, pool: KvPool, wanted: Ids) -> torch.Tensor:
        """Run a step's tokens, writing their KV to the pool.

        token_ids: [tokens], in the plan's order; wanted: indices of the tokens whose final hidden state is
        needed; returns [len(wanted), hidden], valid until the next call. Arrays of the host, since between
        two steps nothing is in a cache, where a numpy call costs a fraction of a torch call.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], fp32."""
