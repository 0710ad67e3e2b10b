"""Causal attention over a paged KV pool, for any mix of prompt chunks and single decode tokens.

A layer's pool is a KvLayer (see `kv_layer`, also for how quantised KV is stored). The slots of a
row's blocks beyond its context are read and given no weight, so they must be finite: `Batch.clear` zeroes a
block before its first use. Padding blocks are never read.

    plan = make_plan(spans, block_size)                    # once per step
    write_kv(layer, kv, plan)                              # per layer
    out = attention(q, layer, plan, AttentionParams(scale=head_dim**-0.5))
"""

from __future__ import annotations

import torch

from baton.kernels.attention import cpu, reference
from baton.kernels.attention.kv_layer import KvLayer, quantize_kv
from baton.kernels.attention.plan import AttentionParams, AttentionPlan, RowSpan, make_plan

__all__ = ["AttentionParams", "AttentionPlan", "KvLayer", "RowSpan", "attention", "make_plan", "write_kv"]


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
    """q: [tokens, heads, head_dim], tokens in the order of the plan's rows; returns the same shape.

    heads is a multiple of kv_heads; query head h reads KV head h // (heads / kv_heads).
    """
    if q.device.type == "cpu":
        return cpu.attention(q, layer, plan, params)
    return reference.attention(q, layer, plan, params)
