"""Rotary position embedding (arXiv:2104.09864), in the "half" layout: dimension i is paired with i + D/2.

x: [tokens, heads, D], changed in place; cos, sin: [tokens, 1, D] from `tables`, made once per step.
"""

from __future__ import annotations

import torch

from baton.kernels.rope import cpu, reference


def tables(angles: torch.Tensor, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin for `rotate_`. angles: [tokens, D/2] in radians; scale multiplies both (yarn)."""
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return (
        torch.cat((cos, cos), -1).unsqueeze(1).to(dtype),
        torch.cat((-sin, sin), -1).unsqueeze(1).to(dtype),
    )


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    if x.device.type == "cpu":
        cpu.rotate_(x, cos, sin)
    else:
        reference.rotate_(x, cos, sin)
