from __future__ import annotations

import torch


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids].float()
