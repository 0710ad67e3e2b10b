"""A GGUF file as a weight source and a model config. Format: ggml's docs/gguf.md.

Blocks of Q4_0, Q4_1 and Q8_0 are also given as they are; copying dequantises. Files of architecture `llama`
store the rows of q and k so that rotation pairs lie side by side; that is undone here, since everything else
uses the half layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from baton.core.errors import InvalidArgument
from baton.engine.config import DecoderConfig
from baton.engine.rope import Rope
from baton.engine.weights.gguf_blocks import as_weight
from baton.engine.weights.source import Shape, check_finite, digest_of
from baton.kernels.quantize import QuantizedWeight

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "rope_freqs": "rope_freqs",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROW_ELEMENTS = 2**14
_PERMUTED = re.compile(r"self_attn\.(q|k)_proj\.")


class _Reader(gguf.GGUFReader):
    """Parses a plain array in place of the memmap, each of whose 800,000 slices costs a Python call more: a
    vocabulary is read in a third of the time. The pages are still mapped, not read."""

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = mapped.view(np.ndarray)


class GgufFile:
    """Opened and checked for being whole; InvalidArgument naming the file if it is not."""

    spare: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self._reader = _Reader(path)
        except Exception as error:  # the parser indexes into the mapping: damage shows as any error at all
            raise InvalidArgument(f"{path} is not a whole GGUF file: {error}") from error
        self._tensors = {canonical(tensor.name): tensor for tensor in self._reader.tensors}
        # GGUF lists dimensions fastest first.
        self._shapes: dict[str, Shape] = {
            name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()
        }
        self.architecture = str(self._field("general.architecture", ""))
        if self.architecture not in _ARCHITECTURES:
            raise InvalidArgument(
                f"{path} holds architecture {self.architecture!r}; known are {', '.join(_ARCHITECTURES)}"
            )

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def copy_into(self, name: str, out: torch.Tensor) -> None:
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(_longer_rows(tensor.data), tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise InvalidArgument(f"{self.where}: {tensor.name} is stored as {kind}, unsupported") from error
        if self.architecture == "llama" and (which := _PERMUTED.search(name)):
            values = _side_by_side_to_half(values.reshape(out.shape), self._heads(which[1]))
        if not values.flags.writeable:
            values = values.copy()
        out.copy_(torch.from_numpy(values).view(out.shape))

    def quantized(self, name: str) -> QuantizedWeight | None:
        tensor = self._tensors[name]
        weight = as_weight(tensor.data, tensor.tensor_type)
        if weight is None:
            return None
        check_finite(weight, f"{self.where}: {tensor.name}")
        if self.architecture == "llama" and (which := _PERMUTED.search(name)):
            rows = np.arange(weight.out_features)
            return weight.rows(torch.from_numpy(_side_by_side_to_half(rows, self._heads(which[1]))))
        return weight

    def digest(self) -> str:
        def reader(tensor: Any) -> Any:
            kind = f"{tensor.tensor_type.name} {list(tensor.shape)}"
            return lambda: (kind, np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data)

        return digest_of({name: reader(tensor) for name, tensor in self._tensors.items()})

    def config(self) -> DecoderConfig:
        hidden, heads = int(self._need("embedding_length")), self._heads("q")
        head_dim = int(self._arch("attention.key_length", hidden // heads))
        layers = int(self._need("block_count"))
        held = self._tensors
        window = self._arch("attention.sliding_window", None)
        vocab = self.shapes().get("model.embed_tokens.weight", (0,))[0]
        return DecoderConfig(
            architecture=self.architecture,
            vocab_size=vocab or int(self._need("vocab_size")),
            hidden_size=hidden,
            intermediate_size=int(self._need("feed_forward_length")),
            heads=heads,
            kv_heads=self._heads("k"),
            head_dim=head_dim,
            max_positions=int(self._need("context_length")),
            norm_eps=float(self._need("attention.layer_norm_rms_epsilon")),
            rope=self._rope(head_dim),
            windows=(int(window) if window else None,) * layers,
            tied="lm_head.weight" not in held,
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in held,
            out_bias="model.layers.0.self_attn.o_proj.bias" in held,
            mlp_bias="model.layers.0.mlp.gate_proj.bias" in held,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in held,
            eos_token_ids=self._eos(),
        )

    def _eos(self) -> tuple[int, ...]:
        ids = (self._field(f"tokenizer.ggml.{kind}_token_id", None) for kind in ("eos", "eot", "eom"))
        return tuple(dict.fromkeys(int(i) for i in ids if i is not None))

    def _rope(self, head_dim: int) -> Rope:
        rotated = int(self._arch("rope.dimension_count", head_dim))
        if rotated != head_dim:
            raise InvalidArgument(f"{self.where} rotates {rotated} of {head_dim} dimensions: unsupported")
        theta, limit = float(self._arch("rope.freq_base", 10000.0)), int(self._need("context_length"))
        if "rope_freqs.weight" in self._tensors:
            factors = tuple(float(f) for f in self._tensors["rope_freqs.weight"].data.reshape(-1))
            return Rope("factors", head_dim, theta, limit, {"factors": factors})
        kind = str(self._arch("rope.scaling.type", "none"))
        if kind == "none":
            return Rope("default", head_dim, theta, limit)
        original = self._arch("rope.scaling.original_context_length", None)
        options = {
            "factor": float(self._arch("rope.scaling.factor", 1.0)),
            "original_max_position_embeddings": None if original is None else int(original),
        }
        return Rope(kind, head_dim, theta, limit, {k: v for k, v in options.items() if v is not None})

    def _heads(self, which: str) -> int:
        heads = int(self._need("attention.head_count"))
        return heads if which == "q" else int(self._arch("attention.head_count_kv", heads))

    def _need(self, key: str) -> Any:
        value = self._arch(key, None)
        if value is None:
            raise InvalidArgument(f"{self.where} lacks the metadata key {self.architecture}.{key}")
        return value

    def _arch(self, key: str, default: Any) -> Any:
        return self._field(f"{self.architecture}.{key}", default)

    def _field(self, key: str, default: Any) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()


def canonical(name: str) -> str:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; unknown names stay as they are."""
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL:
        return f"{_GLOBAL[stem]}.{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return name


def _longer_rows(data: np.ndarray) -> np.ndarray:
    """The same bytes in fewer rows. The library dequantises some rows at a time: short ones cost it dear."""
    rows, columns = data.shape if data.ndim == 2 else (1, data.size)
    merged = 1
    while rows % (2 * merged) == 0 and 2 * merged * columns <= _ROW_ELEMENTS:
        merged *= 2
    return data.reshape(rows // merged, -1)


def _side_by_side_to_half(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of q and k rows: within a head, (0, 1), (2, 3), ... become (0, D/2), ..."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
