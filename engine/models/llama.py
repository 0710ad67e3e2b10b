"""Decoders of the Llama family: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe are one model with a few
switches. Here operation by operation, on any backend; `recorded` runs the same decoder in one call."""

from __future__ import annotations

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.engine.models.base import Ids, as_tensor
from baton.engine.models.decoder import Decoder, Mlp, Moe
from baton.engine.rotations import Rotations
from baton.kernels.attention import AttentionParams, AttentionPlan
from baton.kernels.backend import Ops
from baton.kernels.rope import Slots


class LlamaModel:
    """See `DecoderModel`. dtype: of activations."""

    def __init__(
        self, config: DecoderConfig, decoder: Decoder, ops: Ops, dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = config
        self.decoder = decoder
        self._ops = ops
        self._dtype = dtype
        self._device = decoder.norm.device
        self._rotations = Rotations(config.rope, dtype, self._device)
        self._attention = tuple(AttentionParams(config.scale, window) for window in config.windows)

    @torch.inference_mode()
    def forward(self, token_ids: Ids, plan: AttentionPlan, pool: KvPool, wanted: Ids) -> torch.Tensor:
        ops, config = self._ops, self.config
        ids, places = (as_tensor(part).to(self._device) for part in (token_ids, wanted))
        hidden = self.decoder.embedding.rows(ids).to(self._dtype)
        rotation = self._rotations(plan.positions)
        slots = Slots(plan.blocks.to(self._device), plan.offsets.to(self._device))
        last = config.layers - 1
        for index, layer in enumerate(self.decoder.layers):
            kv_layer = pool.layer(index)
            normed = ops.rms_norm(hidden, layer.attn_norm, config.norm_eps)
            heads = config.heads + 2 * config.kv_heads
            qkv = layer.qkv(normed).contiguous().view(-1, heads, config.head_dim)
            ops.rotate_and_store(qkv, rotation, kv_layer, slots, layer.qk_norm)
            if index == last:
                # Nothing but the wanted tokens' states is read after the last layer's KV is written.
                if not len(places):
                    return hidden[:0]
                hidden = hidden[places]
            mixed = ops.attention(qkv[:, : config.heads], kv_layer, plan, self._attention[index]).flatten(1)
            hidden += layer.out(mixed if index < last else mixed[places])
            hidden += self._mlp(ops.rms_norm(hidden, layer.mlp_norm, config.norm_eps), layer.mlp)
        return ops.rms_norm(hidden, self.decoder.norm, config.norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.head(hidden).float()

    def _mlp(self, normed: torch.Tensor, mlp: Mlp | Moe) -> torch.Tensor:
        ops = self._ops
        if isinstance(mlp, Moe):
            routing = ops.route(mlp.router(normed), mlp.chosen, mlp.normalized)
            return ops.experts(normed, routing, mlp.experts)
        return mlp.down(ops.silu_mul(mlp.gate_up(normed)))
