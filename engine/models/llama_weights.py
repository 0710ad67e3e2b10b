"""Builds a Llama-family decoder's weights from a source, each parameter once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.engine.config import DecoderConfig
from baton.engine.models.llama import DecoderWeights, LayerWeights
from baton.engine.weights.source import Shape, WeightSource, check_complete

# Not parameters, or (a head that is tied to the embedding) a second copy of one.
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def load_weights(source: WeightSource, config: DecoderConfig, dtype: torch.dtype) -> DecoderWeights:
    """InvalidArgument names the parameters that are missing, unexpected or misshapen."""
    wanted = parameter_shapes(config)
    check_complete(source, wanted, ignored=(*_IGNORED, "lm_head.weight") if config.tied else _IGNORED)
    return _Loader(source, config, wanted, dtype).load()


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Every parameter of the model by its name in a Hugging Face checkpoint."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.out_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    vectors = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        vectors |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.layers):
        prefix = f"model.layers.{index}"
        for name, (rows, columns, bias) in matrices.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        for name, size in vectors.items():
            shapes[f"{prefix}.{name}.weight"] = (size,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class _Loader:
    def __init__(
        self, source: WeightSource, config: DecoderConfig, shapes: dict[str, Shape], dtype: torch.dtype
    ) -> None:
        self.source = source
        self.config = config
        self.shapes = shapes
        self.dtype = dtype

    def load(self) -> DecoderWeights:
        embedding = self._one("model.embed_tokens.weight")
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(f"model.layers.{i}") for i in range(self.config.layers)),
            norm=self._one("model.norm.weight"),
            head=embedding if self.config.tied else self._one("lm_head.weight"),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [f"{attn}.{part}_proj" for part in "qkv"]
        gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        config = self.config
        return LayerWeights(
            attn_norm=self._one(f"{prefix}.input_layernorm.weight"),
            qkv=self._fused(qkv, "weight"),
            out=self._one(f"{attn}.o_proj.weight"),
            mlp_norm=self._one(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self._fused(gate_up, "weight"),
            down=self._one(f"{mlp}.down_proj.weight"),
            qkv_bias=self._fused(qkv, "bias") if config.qkv_bias else None,
            out_bias=self._one(f"{attn}.o_proj.bias") if config.out_bias else None,
            gate_up_bias=self._fused(gate_up, "bias") if config.mlp_bias else None,
            down_bias=self._one(f"{mlp}.down_proj.bias") if config.mlp_bias else None,
            q_norm=self._one(f"{attn}.q_norm.weight") if config.qk_norm else None,
            k_norm=self._one(f"{attn}.k_norm.weight") if config.qk_norm else None,
        )

    def _one(self, name: str) -> torch.Tensor:
        out = torch.empty(self.shapes[name], dtype=self.dtype)
        self.source.copy_into(name, out)
        return out

    def _fused(self, parts: Sequence[str], kind: str) -> torch.Tensor:
        """The parts' rows one below the other, each copied straight to its place."""
        names = [f"{part}.{kind}" for part in parts]
        rows = [self.shapes[name][0] for name in names]
        out = torch.empty((sum(rows), *self.shapes[names[0]][1:]), dtype=self.dtype)
        for name, piece in zip(names, out.split(rows), strict=True):
            self.source.copy_into(name, piece)
        return out
