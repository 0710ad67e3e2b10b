"""Rotation frequencies, with the ways of stretching a context that checkpoints ask for.

Linear: Chen et al., arXiv:2306.15595. Dynamic NTK: Peng et al. and Hugging Face's variant. YaRN:
arXiv:2309.00071. llama3: the piecewise rule of Llama 3.1. All agree with transformers' numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from baton.core.errors import InvalidArgument

_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),  # GGUF: divisors of the frequencies, one per pair of dimensions
}


@dataclass(frozen=True, slots=True)
class Rope:
    """kind: one of `default linear dynamic yarn llama3 factors`; options: that kind's own numbers, under
    transformers' names. max_positions: the model's own limit, from which dynamic scaling starts."""

    kind: str
    head_dim: int
    theta: float
    max_positions: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _NEEDED:
            raise InvalidArgument(f"rope type {self.kind!r} is not one of {', '.join(_NEEDED)}", field="rope")
        for name in _NEEDED[self.kind]:
            if self.options.get(name) is None:
                raise InvalidArgument(f"rope type {self.kind!r} needs {name}", field="rope")

    def describe(self) -> str:
        """All that decides a rotated key, on one line."""
        options = ",".join(f"{key}={_short(value)}" for key, value in sorted(self.options.items()))
        return f"{self.kind}:{self.theta:g}" + (f"({options})" if options else "")

    @property
    def scale(self) -> float:
        """Factor on cos and sin."""
        return _yarn_scale(self.options) if self.kind == "yarn" else 1.0

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """[tokens, head_dim / 2] in radians, fp32, for int64 positions."""
        if self.kind == "dynamic":
            return positions[:, None].float() * self._dynamic(positions)
        return positions[:, None].float() * self.frequencies()

    def frequencies(self) -> torch.Tensor:
        """[head_dim / 2] radians per position. Of `dynamic`: those within the model's own limit."""
        plain = _plain(self.head_dim, self.theta)
        if self.kind == "linear":
            return plain / self.options["factor"]
        if self.kind == "factors":
            return plain / torch.tensor(self.options["factors"], dtype=torch.float32)
        if self.kind == "llama3":
            return _llama3(plain, self.options)
        if self.kind == "yarn":
            return _yarn(self)
        return plain

    def _dynamic(self, positions: torch.Tensor) -> torch.Tensor:
        """[tokens, head_dim / 2]: each token by the length of the sequence that ends with it, which is what a
        decoder with a cache sees; so a position's key depends on nothing but the position."""
        factor, limit, dim = self.options["factor"], self.max_positions, self.head_dim
        lengths = (positions + 1).clamp(min=limit).double()
        bases = self.theta * (factor * lengths / limit - (factor - 1)) ** (dim / (dim - 2))
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        return (1.0 / bases[:, None] ** exponents).float()


def _plain(dim: int, theta: float) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _llama3(plain: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    factor, low, high = options["factor"], options["low_freq_factor"], options["high_freq_factor"]
    old = options["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    smooth = (old / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    out = torch.where(wavelength > old / low, plain / factor, between)
    return torch.where(wavelength < old / high, plain, out)


def _yarn(rope: Rope) -> torch.Tensor:
    dim, theta, options = rope.head_dim, rope.theta, rope.options
    old = options["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        """Where a frequency makes so many turns over the original context."""
        return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(options.get("beta_fast") or 32), dimension(options.get("beta_slow") or 1)
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    interpolate = ramp.clamp(0, 1)
    plain = _plain(dim, theta)
    return plain / options["factor"] * interpolate + plain * (1 - interpolate)


def _yarn_scale(options: Mapping[str, Any]) -> float:
    if options.get("attention_factor") is not None:
        return float(options["attention_factor"])

    def magnitude(weight: float) -> float:
        factor = options["factor"]
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, all_dim = options.get("mscale"), options.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(all_dim) if mscale and all_dim else magnitude(1.0)


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "/".join(f"{number:.4g}" for number in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
