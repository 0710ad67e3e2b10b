from __future__ import annotations

import torch


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    lse_a, lse_b = (lse.masked_fill(lse == torch.inf, -torch.inf) for lse in (lse_a, lse_b))
    peak = torch.maximum(lse_a, lse_b)
    base = peak.masked_fill(peak == -torch.inf, 0.0)  # -inf - -inf would be NaN
    weight_a, weight_b = (lse_a - base).exp(), (lse_b - base).exp()
    total = weight_a + weight_b
    divisor = total.masked_fill(total == 0, 1.0)
    out = _share(out_a, weight_a / divisor) + _share(out_b, weight_b / divisor)
    return out.to(out_a.dtype), base + total.log()


def _share(out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    weight = weight.unsqueeze(-1)
    return torch.where(weight == 0, 0.0, out * weight)
