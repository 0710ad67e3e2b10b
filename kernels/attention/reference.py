"""Paged attention as one would explain it: row by row, token by token of context, nothing shared."""

from __future__ import annotations

import torch

from baton.kernels.attention.kv_layer import KvLayer, dequantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, visible


def attention(q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams) -> torch.Tensor:
    """See the package."""
    return attention_lse(q, layer, plan, params)[0]


def attention_lse(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package."""
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:2])
    group = q.shape[1] // layer.kv_heads
    token = 0
    for span in plan.spans:
        if not span.length:
            continue
        # What no query of the row may see is left out, not just given no weight: 0 * NaN is NaN.
        first = 0 if params.window is None else max(0, span.start - params.window + 1)
        positions = torch.arange(first, span.context, device=q.device)
        queries = torch.arange(span.start, span.context, device=q.device)
        keys, values = (
            part.repeat_interleave(group, 1) for part in context_of(layer, span, positions, q.dtype)
        )
        rows = slice(token, token + span.length)
        scores = torch.einsum("qhd,khd->hqk", q[rows], keys) * params.scale
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        scores = scores.masked_fill(~visible(queries, positions, params.window), -torch.inf)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        lse[rows] = scores.logsumexp(-1).T
        token += span.length
    return out, lse


def context_of(
    layer: KvLayer, span: RowSpan, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row's keys and values at these positions: two [positions, kv_heads, head_dim]."""
    table = torch.tensor(list(span.block_table), dtype=torch.int64, device=layer.codes.device)
    blocks, offsets = table[positions // layer.block_size], positions % layer.block_size
    kv = layer.codes[blocks, :, offsets]
    if layer.scales is not None:
        kv = dequantize_kv(kv, layer.scales[blocks, :, offsets], dtype)
    keys, values = kv.to(dtype).unbind(1)
    return keys, values
