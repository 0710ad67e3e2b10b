from __future__ import annotations

import torch

from baton.kernels.logits.types import LARGEST, LogitEdits


def apply(logits: torch.Tensor, edits: LogitEdits) -> None:
    before = logits[edits.rows, edits.ids].double()
    x = torch.where(before > 0, before / edits.repetition, before * edits.repetition) + edits.add
    x = torch.where(before.isinf(), before, x.clamp(-LARGEST, LARGEST))
    logits[edits.rows, edits.ids] = torch.where(edits.add == -torch.inf, -torch.inf, x).to(logits.dtype)
