"""Decoders of the Llama family: llama, mistral, qwen2, qwen3 are one model with a few switches.

Weights are stored once, [out, in], with q, k, v and gate, up fused into one matrix each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.kernels.attention import AttentionParams, AttentionPlan, KvLayer, attention, write_kv
from baton.kernels.linear import linear
from baton.kernels.rms_norm import rms_norm
from baton.kernels.rope import rotate_, tables
from baton.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """qkv: [(heads + 2 kv_heads) * head_dim, hidden]; gate_up: [2 * intermediate, hidden], gate first."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """head: the same tensor as `embedding` when they are tied; both [vocab, hidden]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


class LlamaModel:
    """See `DecoderModel`."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.weights = weights
        self._attention = tuple(AttentionParams(config.scale, window) for window in config.windows)

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, plan: AttentionPlan, pool: KvPool, wanted: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.weights.embedding[token_ids]
        rope = self.config.rope
        cos, sin = tables(rope.angles(plan.positions), rope.scale, hidden.dtype)
        last = self.config.layers - 1
        for index, layer in enumerate(self.weights.layers):
            normed = rms_norm(hidden, layer.attn_norm, self.config.norm_eps)
            q = self._project(normed, layer, cos, sin, pool.layer(index), plan)
            if index == last:
                # Nothing but the wanted tokens' states is read after the last layer's KV is written.
                if not len(wanted):
                    return hidden[:0]
                hidden = hidden[wanted]
            mixed = attention(q, pool.layer(index), plan, self._attention[index]).flatten(1)
            hidden += linear(mixed if index < last else mixed[wanted], layer.out, layer.out_bias)
            hidden += self._mlp(hidden, layer)
        return rms_norm(hidden, self.weights.norm, self.config.norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.weights.head).float()

    def _project(
        self,
        normed: torch.Tensor,
        layer: LayerWeights,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_layer: KvLayer,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        """Queries, rotated, [tokens, heads, head_dim]; keys and values go to the pool."""
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = linear(normed, layer.qkv, layer.qkv_bias).contiguous()
        qkv = qkv.view(-1, heads + 2 * kv_heads, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
            q.copy_(rms_norm(q, layer.q_norm, config.norm_eps))
            k.copy_(rms_norm(k, layer.k_norm, config.norm_eps))
        rotate_(qkv[:, : heads + kv_heads], cos, sin)
        write_kv(kv_layer, qkv[:, heads:].view(-1, 2, kv_heads, config.head_dim), plan)
        return qkv[:, :heads]

    def _mlp(self, hidden: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        normed = rms_norm(hidden, layer.mlp_norm, self.config.norm_eps)
        return linear(
            silu_mul(linear(normed, layer.gate_up, layer.gate_up_bias)), layer.down, layer.down_bias
        )
