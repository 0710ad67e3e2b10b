"""Paged attention as one would explain it: row by row, token by token of context, nothing shared.

Exact, or (`rounded`) with the rounding that INT8 KV allows a backend: see the package.
"""

from __future__ import annotations

import torch

from baton.kernels.attention.kv_layer import KvLayer, dequantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, visible

ROUNDED_TOGETHER = 64  # keys, from a multiple of it on, whose values' weights have one step


def attention(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams, *, rounded: bool = False
) -> torch.Tensor:
    """See the package."""
    return attention_lse(q, layer, plan, params, rounded=rounded)[0]


def attention_lse(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams, *, rounded: bool = False
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
        scaled = _round_queries(q[rows], params.scale) if rounded else q[rows] * params.scale
        scores = torch.einsum("qhd,khd->hqk", scaled, keys)
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        scores = scores.masked_fill(~visible(queries, positions, params.window), -torch.inf)
        weights = scores.softmax(-1)
        if rounded:
            weights = _round_weights(weights, _value_scales(layer, span, positions, group), positions)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values)
        lse[rows] = scores.logsumexp(-1).T
        token += span.length
    return out, lse


def _round_queries(q: torch.Tensor, scale: float) -> torch.Tensor:
    """To codes of up to 127 times a step, one for each token and head; in fp32, whatever q is."""
    exact = q.float() * scale
    step = exact.abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (exact / step).round() * step.to(q.dtype), 0).to(q.dtype)


def _round_weights(weights: torch.Tensor, scales: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """weights: [heads, queries, keys]. scales: [heads, keys], of the values. Their products become codes of
    up to 127 times a step, one for each query, head and ROUNDED_TOGETHER keys."""
    products = weights * scales.unsqueeze(1)
    tiles = (positions // ROUNDED_TOGETHER).expand(products.shape)
    shape = (*products.shape[:2], int(positions[-1]) // ROUNDED_TOGETHER + 1)
    largest = products.new_zeros(shape).scatter_reduce(2, tiles, products, "amax").gather(2, tiles)
    rounded = torch.where(largest > 0, (products / largest * 127).round() * largest / 127, 0)
    return torch.where(scales.unsqueeze(1) > 0, rounded / scales.unsqueeze(1), 0)


def _value_scales(layer: KvLayer, span: RowSpan, positions: torch.Tensor, group: int) -> torch.Tensor:
    assert layer.scales is not None
    table = torch.tensor(list(span.block_table), dtype=torch.int64, device=layer.codes.device)
    scales = layer.scales[table[positions // layer.block_size], 1, positions % layer.block_size]
    return scales.double().repeat_interleave(group, 1).T


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
