"""What the engine is asked to load, and what a decoder of the Llama family is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from baton.core import arithmetic
from baton.core.errors import InvalidArgument
from baton.engine.rope import Rope
from baton.engine.weights.matrix import QUANTIZATIONS

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KV_DTYPES = _DTYPES | {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
BACKENDS = ("auto", "native", "torch", "triton")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load, and how it computes.

    model: a folder, a .gguf file, a hub name, or `demo`.
    dtype: of weights that are not quantised, and of KV unless kv_dtype names another; auto: float32 on a CPU
    (native kernels hold a matrix in 16 bits where those are the same numbers), bfloat16 elsewhere. On a CPU
    activations are float32 whatever the weights are.
    quantization: see `weights.matrix.storage`. kv_dtype: auto, a dtype, int8 or fp8.
    backend: see `kernels.backend`. device: cpu, cuda:0, ...
    threads: for computing; 0 leaves it to torch. Two processes that each use all cores wait for each other at
    every operator: give each its share. cpus: where the threads run, one each; empty: anywhere.
    max_model_len: prompt and output; None: the model's limit.
    """

    model: str
    dtype: str = "auto"
    quantization: str = "auto"
    kv_dtype: str = "auto"
    backend: str = "auto"
    device: str = "cpu"
    threads: int = 0
    cpus: tuple[int, ...] = ()
    block_size: int = 16
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, ("auto", *_DTYPES))
        _one_of("kv_dtype", self.kv_dtype, ("auto", *_KV_DTYPES))
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("backend", self.backend, BACKENDS)
        if self.block_size < 1:
            raise InvalidArgument(f"must be at least 1, got {self.block_size}", field="block_size")
        if self.threads < 0:
            raise InvalidArgument(f"must not be negative, got {self.threads}", field="threads")
        if self.cpus and len(self.cpus) != self.threads:
            raise InvalidArgument(f"{len(self.cpus)} for {self.threads} threads", field="cpus")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise InvalidArgument(f"must be at least 2, got {self.max_model_len}", field="max_model_len")
        try:
            torch.device(self.device)
        except RuntimeError:
            raise InvalidArgument(f"no such device: {self.device!r}", field="device") from None

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of weights that are not quantised."""
        return _DTYPES[arithmetic.weights_dtype(self.dtype, self.device)]

    @property
    def activation_dtype(self) -> torch.dtype:
        return _DTYPES[arithmetic.activation_dtype(self.dtype, self.device)]

    @property
    def dense_dtype(self) -> str:
        """Of matrices that are not quantised; where `quantization` takes them all, of the rest."""
        return arithmetic.dense_dtype(self.dtype, self.quantization, self.device)

    @property
    def kv_torch_dtype(self) -> torch.dtype:
        return self.torch_dtype if self.kv_dtype == "auto" else _KV_DTYPES[self.kv_dtype]


def _one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidArgument(f"must be one of {', '.join(known)}, got {value!r}", field=field)


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A layer's mixture of experts. normalized: the chosen experts' weights are scaled to sum to 1."""

    experts: int
    chosen: int
    intermediate_size: int
    normalized: bool

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.experts:
            raise InvalidArgument(f"{self.chosen} of {self.experts} experts cannot be chosen")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-family decoder (llama, mistral, mixtral, qwen2, qwen3, qwen3_moe).

    windows: each layer's sliding window, None: full. head_dim is a fact of its own, not hidden_size / heads.
    moe: of the layers whose numbers are in `sparse`; the others have a dense MLP.
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
    moe: MoeConfig | None = None
    sparse: frozenset[int] = frozenset()
    eos_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InvalidArgument(f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly")
        if self.sparse and self.moe is None:
            raise InvalidArgument("sparse layers without experts")

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)
