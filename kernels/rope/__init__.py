"""Rotary position embedding (arXiv:2104.09864), in the "half" layout: dimension i is paired with i + D/2.

    rotation = tables(angles, scale, dtype)                       # once per step
    rotate_and_store(qkv, rotation, layer, slots, norm)           # per layer

`rotate_and_store` is all that happens between a layer's qkv projection and its attention. qkv, [tokens, heads
+ 2 kv_heads, D] (queries, keys, values; contiguous), is changed in place: with `norm` each query and key head
is normed (as `rms_norm` does) first, then queries and keys are rotated. Keys (as they are then) and values
are written to each token's slot of the layer's pool, rounded to nearest even, or quantised by the rule of
`attention.kv_layer`, whose bits every backend reproduces for equal vectors. Slots differ from each other and
name blocks that exist. A NaN stays in its vector (quantised: in that vector's scale).
"""

from __future__ import annotations

import torch

from baton.kernels.rope import reference
from baton.kernels.rope.types import QkNorm, Rotation, Slots

__all__ = ["QkNorm", "Rotation", "Slots", "reference", "tables"]


def tables(angles: torch.Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """angles: [tokens, D/2] in radians; scale multiplies cos and sin (yarn)."""
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return Rotation(
        torch.cat((cos, cos), -1).unsqueeze(1).to(dtype),
        torch.cat((-sin, sin), -1).unsqueeze(1).to(dtype),
    )
