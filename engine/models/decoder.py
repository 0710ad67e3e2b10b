"""What a decoder of the Llama family is made of, prepared for the backend that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from baton.kernels.linear import Linear
from baton.kernels.moe import ExpertMlp as Mlp
from baton.kernels.rope import QkNorm

__all__ = ["Decoder", "DecoderLayer", "Mlp", "Moe"]


@dataclass(frozen=True, slots=True)
class Moe:
    """router: hidden -> experts. chosen, normalized: see `MoeConfig`."""

    router: Linear
    experts: tuple[Mlp, ...]
    chosen: int
    normalized: bool


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """qkv: hidden -> (heads + 2 kv_heads) * head_dim. Norms are vectors of the activations' dtype."""

    attn_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    mlp: Mlp | Moe
    qk_norm: QkNorm | None = None

    def products(self) -> Iterator[Linear]:
        yield self.qkv
        yield self.out
        if isinstance(self.mlp, Moe):
            yield self.mlp.router
            for expert in self.mlp.experts:
                yield from expert
        else:
            yield from self.mlp


@dataclass(frozen=True, slots=True)
class Decoder:
    """head: hidden -> vocab, the same object as `embedding` when they are tied. as_stored: whether any matrix
    is held in few bits because the checkpoint stores it so."""

    embedding: Linear
    layers: tuple[DecoderLayer, ...]
    norm: torch.Tensor
    head: Linear
    as_stored: bool = False

    @property
    def nbytes(self) -> int:
        """Matrices in memory, each once."""
        matrices = {id(one): one for layer in self.layers for one in layer.products()}
        matrices |= {id(self.embedding): self.embedding, id(self.head): self.head}
        return sum(one.nbytes for one in matrices.values())
