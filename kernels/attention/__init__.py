"""Causal attention over a paged KV pool, for any mix of prompt chunks, decode tokens and verification rows.

A layer's pool is a KvLayer (see `kv_layer`, also for how quantised KV is stored). What lies in a pool beyond
what a query sees never reaches its result, be it NaN; nor does padding of block tables (0, -1, any block).
Rows may have no tokens.

    plan = make_plan(spans, block_size)                    # once per step
    write_kv(layer, kv, plan)                              # per layer
    out = attention(q, layer, plan, AttentionParams(scale=head_dim**-0.5))

A backend is a module with

    attention(q, layer, plan, params) -> out
    attention_lse(q, layer, plan, params) -> (out, lse)

    q: [tokens, heads, head_dim], tokens in the order of the plan's rows, any strides but a contiguous
        head_dim. heads is a multiple of kv_heads; query head h reads KV head h // (heads / kv_heads).
    out: the same shape, contiguous. lse: [tokens, heads], the natural log of the sum of the exponentials of
        all scores (after scale and soft cap), as `merge_states` takes it.

With INT8 KV a backend may round the scaled queries to 8 bits as well, a step for each token and head, and the
softmax's weights (times the values' scales), a step for each query, head and 64 keys, so that all products
are of integers; native does. `reference` says what that is exactly.
"""

from __future__ import annotations

import torch

from baton.core.batch import SharedPrefix
from baton.kernels.attention import cpu, reference
from baton.kernels.attention.kv_layer import KvLayer, quantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, make_plan

__all__ = [
    "AttentionParams",
    "AttentionPlan",
    "KvLayer",
    "RowSpan",
    "SharedPrefix",
    "attention",
    "attention_lse",
    "make_plan",
    "write_kv",
]


def write_kv(layer: KvLayer, kv: torch.Tensor, plan: AttentionPlan) -> None:
    """Put the step's keys and values, [tokens, 2, kv_heads, head_dim], where the block tables say."""
    codes, scales = layer
    if scales is not None:
        kv, kv_scales = quantize_kv(kv, codes.dtype)
        _write(scales, kv_scales, plan)
    _write(codes, kv.to(codes.dtype), plan)


def _write(into: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan) -> None:
    if plan.only_slot is not None:
        block, offset = plan.only_slot
        into[block, :, offset].copy_(kv[0])  # a plain copy is several times cheaper to start
    else:
        into.transpose(1, 2).index_put_((plan.blocks, plan.offsets), kv)


def attention(q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams) -> torch.Tensor:
    """By torch, on any device."""
    if q.device.type == "cpu":
        return cpu.attention(q, layer, plan, params)
    return reference.attention(q, layer, plan, params)


def attention_lse(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """By torch, on any device."""
    return reference.attention_lse(q, layer, plan, params)
