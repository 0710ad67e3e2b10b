"""Loads a hooked model, and finds out by trying whether it can be run over the paged pool."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from baton.core.errors import InvalidArgument
from baton.engine.kv_pool import KvPool, KvShape
from baton.engine.models.base import as_tensor
from baton.engine.models.hooked import NAME, HookedModel, LayerFacts, Unsupported
from baton.kernels.attention import RowSpan, make_plan

_TRIED_TOKENS, _TRIED_FIRST, _TRIED_BLOCK = 9, 5, 4
# Largest difference of log-probabilities: far above rounding, far below what a wrong mask does.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.1}


@dataclass(frozen=True, slots=True)
class HookedFacts:
    """What composition must know of the model; max_positions in tokens."""

    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int
    geometry: str
    weights_bytes: int


def load_hooked(folder: Path, config: Any, dtype: torch.dtype) -> tuple[HookedModel, HookedFacts]:
    """InvalidArgument: parameters are missing, unexpected or misshapen, or the model cannot be run here."""
    model = HookedModel(_load(folder, config, dtype))
    text = config.get_text_config()
    try:
        facts = _facts(text, model.probe(), model.nbytes)
        _try(model, facts, dtype)
    except Unsupported as error:
        raise InvalidArgument(
            f"{folder}: {config.model_type} cannot be run over a paged KV pool: {error}"
        ) from error
    return model, facts


def _load(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # its loaders and constructors raise many kinds
        raise InvalidArgument(f"{folder} cannot be loaded as {config.model_type}: {error}") from error
    problems = [
        f"{kind.removesuffix('_keys')}: {', '.join(sorted(map(str, report[kind]))[:5])}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if report[kind]
    ]
    if problems:
        raise InvalidArgument(f"{folder} does not hold this model's parameters; {'; '.join(problems)}")
    return model.eval().requires_grad_(False)


def _facts(config: Any, seen: dict[int, LayerFacts], weights_bytes: int) -> HookedFacts:
    layers = config.num_hidden_layers
    if sorted(seen) != list(range(layers)):
        raise Unsupported(f"attention of {len(seen)} of its {layers} layers goes through the interface")
    shapes = {(fact.kv_heads, fact.head_dim) for fact in seen.values()}
    if len(shapes) != 1:
        raise Unsupported("its layers differ in KV heads or head size")
    windows = [seen[i].params.window for i in range(layers)]
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) and not any(windows):
        raise Unsupported("its sliding windows are not handed to the attention")
    kv_heads, head_dim = shapes.pop()
    rope = getattr(config, "rope_parameters", None) or {}
    window = str(windows[0]) if len(set(windows)) == 1 else "/".join(map(str, windows))
    return HookedFacts(
        vocab_size=config.vocab_size,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=_max_positions(config, rope),
        geometry=f"layers={layers} kv_heads={kv_heads} head_dim={head_dim} rope={rope} window={window}",
        weights_bytes=weights_bytes,
    )


def _max_positions(config: Any, rope: dict[str, Any]) -> int:
    """Some ways of stretching rotate by the longest sequence of the batch, beyond this length: a cached key
    would then depend on its neighbours. Up to it they do not."""
    if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings"):
        return int(rope["original_max_position_embeddings"])
    return int(config.max_position_embeddings)


def _try(model: HookedModel, facts: HookedFacts, dtype: torch.dtype) -> None:
    """A few tokens in two chunks and a single step over the pool must give the dense model's distribution."""
    tokens = array("q", [token % facts.vocab_size for token in range(3, 3 + _TRIED_TOKENS)])
    blocks = -(-_TRIED_TOKENS // _TRIED_BLOCK)
    pool = KvPool(KvShape(blocks + 1, facts.layers, _TRIED_BLOCK, facts.kv_heads, facts.head_dim, dtype))
    table = list(range(1, blocks + 1))
    hidden = torch.empty(0)
    edges = (0, _TRIED_FIRST, _TRIED_TOKENS - 1, _TRIED_TOKENS)
    for start, end in pairwise(edges):
        plan = make_plan([RowSpan(start, end - start, table)], _TRIED_BLOCK, dtype)
        hidden = model.forward(tokens[start:end], plan, pool, array("q", [end - start - 1]))
    paged = model.logits(hidden)[0].log_softmax(-1)
    difference = float((paged - _dense(model.model, as_tensor(tokens))).abs().max())
    if not difference <= _TOLERANCE[dtype]:
        raise Unsupported(f"its log-probabilities differ by {difference:.3g} from dense attention's")


@torch.inference_mode()
def _dense(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """[vocab] after the last token, by transformers alone."""
    model.set_attn_implementation("eager")
    try:
        out: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits[0, -1].float()
        return out.log_softmax(-1)
    finally:
        model.set_attn_implementation(NAME)
