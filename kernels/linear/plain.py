"""What the layers that torch computes share: they hold the weight as it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from baton.kernels.quantize import QuantizedWeight

W = TypeVar("W", bound=torch.Tensor | QuantizedWeight)


@dataclass(frozen=True, slots=True)
class PlainLinear(Generic[W]):
    weight: W
    bias: torch.Tensor | None

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)
