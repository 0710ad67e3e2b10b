"""What the runner needs of a model, whichever way it is run."""

from __future__ import annotations

from array import array
from typing import Protocol, TypeAlias

import numpy as np
import torch

from baton.engine.kv_pool import KvPool
from baton.kernels.attention import AttentionPlan

Ids: TypeAlias = "array[int]"  # of type "q"


class DecoderModel(Protocol):
    def forward(self, token_ids: Ids, plan: AttentionPlan, pool: KvPool, wanted: Ids) -> torch.Tensor:
        """Run a step's tokens, writing their KV to the pool.

        token_ids: [tokens], in the plan's order; wanted: indices of the tokens whose final hidden state is
        needed; returns [len(wanted), hidden], valid until the next call. Plain arrays: between two steps no
        cache holds the code of numpy or torch, and the first call of either takes some twenty microseconds.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], fp32."""


def as_tensor(ids: Ids) -> torch.Tensor:
    """Over the same memory."""
    return torch.from_numpy(np.asarray(ids))
