"""Paged attention through torch's fused CPU kernel, which takes strided inputs.

Query heads of one KV head become either more queries (decode) or a broadcast batch dimension (prefill), so
keys and values are never repeated. Whole blocks are gathered: copying 12 KiB pieces runs at memory speed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton.kernels.attention.cpu_plan import DecodeGroup, PrefillRow, window_plan
from baton.kernels.attention.kv_layer import KvLayer, dequantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan
from baton.kernels.attention.reference import attention_lse

__all__ = ["attention", "attention_lse"]


def attention(
    q: torch.Tensor,
    layer: KvLayer,
    plan: AttentionPlan,
    params: AttentionParams,
) -> torch.Tensor:
    """See the package. Shared prefixes are read once per row."""
    windowed = window_plan(plan, params.window)
    if len(windowed.decode) == 1 and windowed.decode[0].rows == len(q):
        return _decode(q, layer, windowed.decode[0], params)
    out = torch.empty_like(q)
    for group in windowed.decode:
        out[group.tokens] = _decode(q[group.tokens], layer, group, params)
    for row in windowed.prefill:
        out[row.tokens] = _prefill(q[row.tokens], layer, row, params)
    return out


def _decode(q: torch.Tensor, layer: KvLayer, group: DecodeGroup, params: AttentionParams) -> torch.Tensor:
    rows, heads, head_dim = q.shape
    kv_heads = layer.kv_heads
    gathered = [_gathered(layer, part, group.blocks, q.dtype) for part in (0, 1)]
    if group.unseen is not None:
        # No weight is not enough: 0 * NaN is NaN.
        for part in gathered:
            part.view(-1, kv_heads, head_dim).index_fill_(0, group.unseen, 0)
    keys, values = (
        part.view(rows, -1, kv_heads, head_dim)[:, group.seen].transpose(1, 2) for part in gathered
    )
    queries = q.view(rows, kv_heads, heads // kv_heads, head_dim)
    out = _attend(queries, keys, values, group.bias, params)
    return out.reshape(rows, heads, head_dim)


def _prefill(q: torch.Tensor, layer: KvLayer, row: PrefillRow, params: AttentionParams) -> torch.Tensor:
    length, heads, head_dim = q.shape
    kv_heads = layer.kv_heads
    group = heads // kv_heads
    keys, values = (
        _gathered(layer, part, row.blocks, q.dtype)
        .view(-1, kv_heads, head_dim)[row.keys]
        .transpose(0, 1)
        .unsqueeze(1)
        .expand(kv_heads, group, -1, head_dim)
        for part in (0, 1)
    )
    queries = q.view(length, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    out = _attend(queries, keys, values, row.mask, params, causal=row.mask is None)
    return out.permute(2, 0, 1, 3).reshape(length, heads, head_dim)


def _gathered(layer: KvLayer, part: int, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[blocks, block_size, kv_heads, head_dim]: their keys (part 0) or values (1)."""
    codes, scales = layer
    gathered = codes[:, part].index_select(0, blocks)
    if scales is None:
        return gathered.to(dtype)
    return dequantize_kv(gathered, scales[:, part].index_select(0, blocks), dtype)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    params: AttentionParams,
    *,
    causal: bool = False,
) -> torch.Tensor:
    """mask: bool True, or bias 0, where a key is seen; None: all are, or (causal) those up to the query."""
    scale, softcap = params.scale, params.softcap
    if softcap is None:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal, scale=scale)
    scores = softcap * torch.tanh(q @ keys.transpose(-1, -2) * (scale / softcap))
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ values
