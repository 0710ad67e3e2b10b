"""By torch, on any device."""

from __future__ import annotations

import torch

from baton.kernels.attention.kv_layer import KvLayer, quantize_kv
from baton.kernels.rms_norm.reference import rms_norm
from baton.kernels.rope.types import QkNorm, Rotation, Slots


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """x: [tokens, heads, D], changed in place."""
    # The sign of the rotated half lies in sin: one roll instead of a negated concatenation.
    other = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(other, sin)


def rotate_and_store(
    qkv: torch.Tensor, rotation: Rotation, layer: KvLayer, slots: Slots, norm: QkNorm | None = None
) -> None:
    heads = qkv.shape[1] - 2 * layer.kv_heads
    queries, keys = qkv[:, :heads], qkv[:, heads : heads + layer.kv_heads]
    if norm is not None:
        queries.copy_(rms_norm(queries, norm.q, norm.eps))
        keys.copy_(rms_norm(keys, norm.k, norm.eps))
    rotate_(qkv[:, : heads + layer.kv_heads], *rotation)
    store(layer, qkv[:, heads:].unflatten(1, (2, layer.kv_heads)), slots)


def store(layer: KvLayer, kv: torch.Tensor, slots: Slots) -> None:
    """kv: [tokens, 2, kv_heads, D]."""
    codes, scales = layer
    if scales is not None:
        kv, kv_scales = quantize_kv(kv, codes.dtype)
        scales.transpose(1, 2).index_put_(slots, kv_scales)
    codes.transpose(1, 2).index_put_(slots, kv.to(codes.dtype))
