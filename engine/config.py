"""What the engine is asked to load, and what a decoder of the Llama family is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from baton.core.errors import InvalidArgument
from baton.engine.rope import Rope

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """model: a folder, a .gguf file, a hub name, or `demo`. dtype: of weights, activations and KV.

    threads: for computing; 0 leaves torch's own choice. Two processes that each use all cores wait for each
    other at every operator: give each its share. max_model_len: prompt and output; None: the model's limit.
    """

    model: str
    dtype: str = "float32"
    threads: int = 0
    block_size: int = 16
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgument(f"must be one of {', '.join(_DTYPES)}, got {self.dtype!r}", field="dtype")
        if self.block_size < 1:
            raise InvalidArgument(f"must be at least 1, got {self.block_size}", field="block_size")
        if self.threads < 0:
            raise InvalidArgument(f"must not be negative, got {self.threads}", field="threads")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise InvalidArgument(f"must be at least 2, got {self.max_model_len}", field="max_model_len")

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-family decoder (llama, mistral, qwen2, qwen3).

    windows: each layer's sliding window, None: full. head_dim is a fact of its own, not hidden_size / heads.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InvalidArgument(f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly")

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)
