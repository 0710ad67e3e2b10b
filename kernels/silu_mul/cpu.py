from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    # silu of a strided vector takes twenty times as long as the copy.
    gate, up = gate_up.contiguous().chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
