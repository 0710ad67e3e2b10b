"""What the runner needs of a model, whichever way it is run."""

from __future__ import annotations

from typing import Protocol

import torch

from baton.engine.kv_pool import KvPool
from baton.kernels.attention import AttentionPlan


class DecoderModel(Protocol):
    def forward(
        self, token_ids: torch.Tensor, plan: AttentionPlan, pool: KvPool, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Run a step's tokens, writing their KV to the pool.

        token_ids: [tokens] int64, in the plan's order; wanted: int64 indices of the tokens whose final hidden
        state is needed; returns [len(wanted), hidden].
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], fp32."""
