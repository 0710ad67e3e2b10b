"""Builds a Llama-family decoder from a source, matrix by matrix: each once, and in its one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from baton.engine.config import DecoderConfig, EngineConfig
from baton.engine.models.decoder import Decoder, DecoderLayer, Mlp, Moe
from baton.engine.weights.experts import Experts
from baton.engine.weights.matrix import Storage, load_matrix, storage
from baton.engine.weights.source import Shape, WeightSource, check_complete
from baton.kernels.backend import Ops
from baton.kernels.linear import Linear
from baton.kernels.quantize import QuantizedWeight
from baton.kernels.rope import QkNorm

# Not parameters, or (a head that is tied to the embedding) a second copy of one.
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def load_decoder(source: WeightSource, config: DecoderConfig, engine: EngineConfig, ops: Ops) -> Decoder:
    """InvalidArgument names the parameters that are missing, unexpected or misshapen."""
    if config.moe is not None:
        source = Experts(source)
    wanted = parameter_shapes(config)
    check_complete(source, wanted, ignored=(*_IGNORED, "lm_head.weight") if config.tied else _IGNORED)
    return _Loader(source, wanted, config, engine, ops).load()


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Every parameter of the model by its name in a Hugging Face checkpoint (of experts: see `Experts`)."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.layers):
        prefix = f"model.layers.{index}"
        for name, (rows, columns, bias) in _matrices(config, index).items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        for name, size in _vectors(config).items():
            shapes[f"{prefix}.{name}.weight"] = (size,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _matrices(config: DecoderConfig, index: int) -> dict[str, tuple[int, int, bool]]:
    """A layer's: rows, columns, and whether there is a bias."""
    hidden = config.hidden_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.out_bias),
    }
    if config.moe is None or index not in config.sparse:
        return attention | _mlp("mlp", hidden, config.intermediate_size, config.mlp_bias)
    experts: dict[str, tuple[int, int, bool]] = {"mlp.gate": (config.moe.experts, hidden, False)}
    for expert in range(config.moe.experts):
        experts |= _mlp(f"mlp.experts.{expert}", hidden, config.moe.intermediate_size, bias=False)
    return attention | experts


def _mlp(prefix: str, hidden: int, inner: int, bias: bool) -> dict[str, tuple[int, int, bool]]:
    return {
        f"{prefix}.gate_proj": (inner, hidden, bias),
        f"{prefix}.up_proj": (inner, hidden, bias),
        f"{prefix}.down_proj": (hidden, inner, bias),
    }


def _vectors(config: DecoderConfig) -> dict[str, int]:
    vectors = {"input_layernorm": config.hidden_size, "post_attention_layernorm": config.hidden_size}
    if config.qk_norm:
        vectors |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    return vectors


class _Loader:
    """wanted: see `parameter_shapes`. The source may hold more, which is left alone."""

    def __init__(
        self,
        source: WeightSource,
        wanted: Mapping[str, Shape],
        config: DecoderConfig,
        engine: EngineConfig,
        ops: Ops,
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._config = config
        self._ops = ops
        self._device = engine.torch_device
        self._vector_dtype = engine.activation_dtype
        # Native kernels widen weights as they read them, and then compute as with fp32 ones, bit for bit.
        narrow = engine.dtype == "auto" and ops.name == "native"
        self._body, self._ends = (
            replace(storage(engine.quantization, engine.torch_dtype, head=head), narrow=narrow)
            for head in (False, True)
        )
        self._as_stored = False

    def load(self) -> Decoder:
        embedding = self._linear(["model.embed_tokens"], self._ends)
        return Decoder(
            embedding=embedding,
            layers=tuple(self._layer(i) for i in range(self._config.layers)),
            norm=self._vector("model.norm.weight"),
            head=embedding if self._config.tied else self._linear(["lm_head"], self._ends),
            as_stored=self._as_stored,
        )

    def _layer(self, index: int) -> DecoderLayer:
        config, prefix = self._config, f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        return DecoderLayer(
            attn_norm=self._vector(f"{prefix}.input_layernorm.weight"),
            qkv=self._linear([f"{attention}.{part}_proj" for part in "qkv"]),
            out=self._linear([f"{attention}.o_proj"]),
            mlp_norm=self._vector(f"{prefix}.post_attention_layernorm.weight"),
            mlp=self._moe(f"{prefix}.mlp") if index in config.sparse else self._mlp(f"{prefix}.mlp"),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
        )

    def _qk_norm(self, prefix: str) -> QkNorm:
        q, k = (self._vector(f"{prefix}.{part}_norm.weight") for part in "qk")
        return QkNorm(q, k, self._config.norm_eps)

    def _mlp(self, prefix: str) -> Mlp:
        return Mlp(
            gate_up=self._linear([f"{prefix}.gate_proj", f"{prefix}.up_proj"]),
            down=self._linear([f"{prefix}.down_proj"]),
        )

    def _moe(self, prefix: str) -> Moe:
        moe = self._config.moe
        assert moe is not None
        return Moe(
            # Small, and which experts are chosen hangs on its last bits.
            router=self._linear([f"{prefix}.gate"], Storage(self._vector_dtype, as_stored=False)),
            experts=tuple(self._mlp(f"{prefix}.experts.{i}") for i in range(moe.experts)),
            chosen=moe.chosen,
            normalized=moe.normalized,
        )

    def _linear(self, parts: Sequence[str], how: Storage | None = None) -> Linear:
        """The parts' rows one below the other."""
        names = [f"{part}.weight" for part in parts]
        how = how or self._body
        weight = load_matrix(self._source, names, how)
        self._as_stored |= how.as_stored and isinstance(weight, QuantizedWeight)
        return self._ops.prepare(_moved(weight, self._device), self._bias(parts))

    def _bias(self, parts: Sequence[str]) -> torch.Tensor | None:
        names = [f"{part}.bias" for part in parts]
        if names[0] not in self._wanted:
            return None
        return torch.cat([self._vector(name) for name in names])

    def _vector(self, name: str) -> torch.Tensor:
        out = torch.empty(self._wanted[name], dtype=self._vector_dtype)
        self._source.copy_into(name, out)
        return out.to(self._device)


def _moved(weight: torch.Tensor | QuantizedWeight, device: torch.device) -> torch.Tensor | QuantizedWeight:
    if device.type == "cpu":
        return weight
    if isinstance(weight, torch.Tensor):
        return weight.to(device)

    def there(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device)

    return replace(
        weight,
        codes=weight.codes.to(device),
        scale=weight.scale.to(device),
        offset=there(weight.offset),
        in_order=there(weight.in_order),
    )
