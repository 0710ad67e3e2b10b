"""config.json and generation_config.json of a Hugging Face folder, for the natively run families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.core.errors import InvalidArgument
from baton.engine.config import DecoderConfig, MoeConfig
from baton.engine.rope import Rope
from baton.engine.weights.folder import read_json

NATIVE = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")


def read_config(folder: Path) -> Any:
    """The transformers config object, which knows each family's defaults. No code of the folder is run."""
    path = folder / "config.json"
    kind = read_json(path).get("model_type")
    from transformers import AutoConfig  # seconds to import, and not needed for GGUF
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        raise InvalidArgument(f"{path} names model_type {kind!r}, which is not known")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its validators raise many kinds
        raise InvalidArgument(f"{path} is not a valid {kind} config: {error}") from error


def eos_token_ids(folder: Path, config: Any) -> tuple[int, ...]:
    """Of the generation config and the model config, in this order: chat models end turns with the first."""
    path = folder / "generation_config.json"
    named = read_json(path).get("eos_token_id") if path.is_file() else None
    ids: list[int] = []
    for value in (named, getattr(config, "eos_token_id", None)):
        ids += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(ids))


def decoder_config(folder: Path, config: Any) -> DecoderConfig | None:
    """None where the config asks for something the native decoder does not do."""
    if config.model_type not in NATIVE or config.hidden_act != "silu":
        return None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = _rope(config, head_dim)
    if rope is None:
        return None
    attention_bias = bool(getattr(config, "attention_bias", False))
    return DecoderConfig(
        architecture=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=head_dim,
        max_positions=_max_positions(rope),
        norm_eps=config.rms_norm_eps,
        rope=rope,
        windows=_windows(config),
        tied=bool(config.tie_word_embeddings),
        qkv_bias=config.model_type == "qwen2" or attention_bias,
        out_bias=config.model_type in ("llama", "qwen3", "qwen3_moe") and attention_bias,
        mlp_bias=config.model_type == "llama" and bool(config.mlp_bias),
        qk_norm=config.model_type in ("qwen3", "qwen3_moe"),
        moe=_moe(config),
        sparse=_sparse(config),
        eos_token_ids=eos_token_ids(folder, config),
    )


def _moe(config: Any) -> MoeConfig | None:
    if config.model_type == "mixtral":
        return MoeConfig(config.num_local_experts, config.num_experts_per_tok, config.intermediate_size, True)
    if config.model_type == "qwen3_moe" and config.num_experts:
        return MoeConfig(
            config.num_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            bool(config.norm_topk_prob),
        )
    return None


def _sparse(config: Any) -> frozenset[int]:
    """The layers that have experts."""
    layers = range(config.num_hidden_layers)
    if config.model_type == "mixtral":
        return frozenset(layers)
    if config.model_type != "qwen3_moe" or not config.num_experts:
        return frozenset()
    dense, step = config.mlp_only_layers or (), config.decoder_sparse_step
    if step < 1:
        raise InvalidArgument(f"decoder_sparse_step must be 1 or more, got {step}")
    return frozenset(i for i in layers if i not in dense and (i + 1) % step == 0)


def _rope(config: Any, head_dim: int) -> Rope | None:
    options = dict(config.rope_parameters or {})
    kind = options.pop("rope_type", "default")
    theta = options.pop("rope_theta", 10000.0)
    if options.pop("partial_rotary_factor", 1.0) != 1.0 or kind not in (
        "default",
        "linear",
        "dynamic",
        "yarn",
        "llama3",
    ):
        return None
    options = {key: value for key, value in options.items() if value is not None}
    limit = config.max_position_embeddings
    if kind == "yarn" and "factor" not in options and "original_max_position_embeddings" in options:
        options["factor"] = limit / options["original_max_position_embeddings"]
    return Rope(kind, head_dim, float(theta), limit, options)


def _max_positions(rope: Rope) -> int:
    """Dynamic scaling is what lets a model go beyond the limit it names."""
    if rope.kind == "dynamic":
        return int(rope.max_positions * rope.options["factor"])
    return rope.max_positions


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
