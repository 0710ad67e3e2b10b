from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.kernels.moe.types import ExpertMlp, Groups, Routing, check_routing
from baton.kernels.silu_mul.reference import silu_mul


def route(logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """logits: [tokens, experts]; 1 <= top_k <= experts. Among equal logits the lowest expert is taken.

    The weights are the softmax over all experts, or, with renormalize, over the chosen ones, which is the
    same as dividing the former by their sum (mixtral, qwen3_moe). A token whose largest logit is not a
    finite number (or is NaN) gets experts 0..top_k-1 with NaN as weights.
    """
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"{top_k} of {logits.shape[1]} experts")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    best = wide.amax(-1, keepdim=True)
    well = best.isfinite()
    ids = torch.where(well, wide, 0.0).argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    shares = (wide - best).exp()
    chosen = shares.gather(-1, ids)
    total = (chosen if renormalize else shares).sum(-1, keepdim=True)
    return Routing(ids, torch.where(well, chosen / total, torch.nan))


def group(ids: torch.Tensor, experts: int) -> Groups:
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=ids.device)
    return Groups(flat.bincount(minlength=experts), order // ids.shape[1], places.view(ids.shape))


def combine(y: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """y: [tokens * top_k, width] in the groups' order; returns [tokens, width]."""
    out = torch.zeros(len(places), y.shape[-1], dtype=y.dtype, device=y.device)
    for choice in range(places.shape[1]):
        out += weights[:, choice, None].to(y.dtype) * y[places[:, choice]]
    return out


def experts(x: torch.Tensor, routing: Routing, mlps: Sequence[ExpertMlp]) -> torch.Tensor:
    """x: [tokens, width]; returns the same shape."""
    check_routing(routing, len(x), len(mlps))
    groups = group(routing.ids, len(mlps))
    gathered = x[groups.tokens].split(groups.counts.tolist())
    y = [mlp.down(silu_mul(mlp.gate_up(rows))) for mlp, rows in zip(mlps, gathered, strict=True) if len(rows)]
    return combine(torch.cat([x[:0], *y]), groups.places, routing.weights)
