"""Causal attention over a paged KV pool, for any mix of prompt chunks and single decode tokens.

A layer's pool is [blocks, 2, block_size, kv_heads, head_dim] (2: key, value), any strides. The slots of a
row's blocks beyond its context are read and given no weight, so they must be finite: `Batch.clear` zeroes a
block before its first use. Padding blocks are never read.

    plan = make_plan(spans, block_size)                    # once per step
    write_kv(layer, kv, plan)                              # per layer
    out = attention(q, layer, plan, AttentionParams(scale=head_dim**-0.5))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baton.kernels.attention import cpu, reference
from baton.kernels.attention.plan import AttentionPlan, RowSpan, make_plan

__all__ = ["AttentionParams", "AttentionPlan", "RowSpan", "attention", "make_plan", "write_kv"]


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """scale multiplies the scores. window: a query sees itself and the window - 1 tokens before it. softcap:
    scores become softcap * tanh(score / softcap) (Gemma 2, arXiv:2408.00118)."""

    scale: float
    window: int | None = None
    softcap: float | None = None


def write_kv(layer: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan) -> None:
    """Put the step's keys and values, [tokens, 2, kv_heads, head_dim], where the block tables say."""
    layer.transpose(1, 2).index_put_((plan.blocks, plan.offsets), kv)


def attention(
    q: torch.Tensor, layer: torch.Tensor, plan: AttentionPlan, params: AttentionParams
) -> torch.Tensor:
    """q: [tokens, heads, head_dim], tokens in the order of the plan's rows; returns the same shape.

    heads is a multiple of kv_heads; query head h reads KV head h // (heads / kv_heads).
    """
    if q.device.type == "cpu":
        return cpu.attention(q, layer, plan, params.scale, params.window, params.softcap)
    return reference.attention(q, layer, plan, params.scale, params.window, params.softcap)
