"""Paged attention as one would explain it: row by row, token by token of context, nothing shared."""

from __future__ import annotations

import torch

from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, visible


def attention(
    q: torch.Tensor,
    layer: torch.Tensor,
    plan: AttentionPlan,
    params: AttentionParams,
) -> torch.Tensor:
    softcap = params.softcap
    out = torch.empty_like(q)
    group = q.shape[1] // layer.shape[3]
    token = 0
    for span in plan.spans:
        end = token + span.length
        keys, values = context_of(layer, span, plan.block_size)
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[token:end], keys) * params.scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        seen = visible(torch.arange(span.start, span.context), torch.arange(span.context), params.window)
        weights = scores.masked_fill(~seen.to(q.device), -torch.inf).softmax(-1)
        out[token:end] = torch.einsum("hqk,khd->qhd", weights, values)
        token = end
    return out


def context_of(layer: torch.Tensor, span: RowSpan, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The row's keys and values by position: two [context, kv_heads, head_dim]."""
    slots = [(span.block_table[p // block_size], p % block_size) for p in range(span.context)]
    if not slots:
        empty = layer.new_empty((0, *layer.shape[3:]))
        return empty, empty
    return (
        torch.stack([layer[block, 0, offset] for block, offset in slots]),
        torch.stack([layer[block, 1, offset] for block, offset in slots]),
    )
