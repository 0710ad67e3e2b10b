"""What a loaded decoder holds, whatever form its backend keeps it in."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.engine.models.decoder import Decoder
from baton.kernels.linear import Linear


def matrices(decoder: Decoder) -> Iterator[Linear]:
    yield decoder.embedding
    yield decoder.head
    for layer in decoder.layers:
        yield from layer.products()


def values(decoder: Decoder) -> Iterator[torch.Tensor]:
    """Every matrix, read back as [out, in], with its biases, and every vector."""
    for one in matrices(decoder):
        yield one.rows(torch.arange(one.out_features))
        yield one(torch.zeros(1, one.in_features))
    yield decoder.norm
    for layer in decoder.layers:
        yield layer.attn_norm
        yield layer.mlp_norm
        yield from (layer.qk_norm or ())[:2]
