"""Paged attention as one would explain it: row by row, token by token of context, nothing shared."""

from __future__ import annotations

import torch

from baton.kernels.attention.kv_layer import KvLayer, dequantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, visible


def attention(
    q: torch.Tensor,
    layer: KvLayer,
    plan: AttentionPlan,
    params: AttentionParams,
) -> torch.Tensor:
    softcap = params.softcap
    out = torch.empty_like(q)
    group = q.shape[1] // layer.kv_heads
    token = 0
    for span in plan.spans:
        end = token + span.length
        keys, values = context_of(layer, span, plan.block_size, q.dtype)
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[token:end], keys) * params.scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        seen = visible(torch.arange(span.start, span.context), torch.arange(span.context), params.window)
        weights = scores.masked_fill(~seen.to(q.device), -torch.inf).softmax(-1)
        out[token:end] = torch.einsum("hqk,khd->qhd", weights, values)
        token = end
    return out


def context_of(
    layer: KvLayer, span: RowSpan, block_size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row's keys and values by position: two [context, kv_heads, head_dim]."""
    positions = torch.arange(span.context, device=layer.codes.device)
    table = torch.tensor(list(span.block_table), dtype=torch.int64, device=layer.codes.device)
    blocks, offsets = table[positions // block_size], positions % block_size
    kv = layer.codes[blocks, :, offsets]
    if layer.scales is not None:
        kv = dequantize_kv(kv, layer.scales[blocks, :, offsets], dtype)
    keys, values = kv.to(dtype).unbind(1)
    return keys, values
