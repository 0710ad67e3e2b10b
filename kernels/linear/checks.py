"""What every backend asks of a weight before it stores it."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import QuantizedWeight


def check(weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None) -> None:
    """InvalidArgument: not a matrix of floats, or the bias is not one number per output."""
    shape = tuple(weight.shape)
    if isinstance(weight, torch.Tensor) and (len(shape) != 2 or not weight.is_floating_point()):
        raise InvalidArgument(f"a linear layer's weight is a {weight.dtype} tensor of shape {list(shape)}")
    if bias is not None and tuple(bias.shape) != shape[:1]:
        raise InvalidArgument(f"a bias of shape {list(bias.shape)} for {shape[0]} outputs")
