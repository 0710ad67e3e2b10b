"""What every backend asks of a weight before it stores it."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize import QuantizedWeight


def check(weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None) -> None:
    """InvalidArgument: not a matrix of floats, an empty one, or the bias is not one number per output."""
    kind = f"{weight.dtype} tensor" if isinstance(weight, torch.Tensor) else weight.kind.value
    shape = tuple(weight.shape)
    integers = isinstance(weight, torch.Tensor) and not weight.is_floating_point()
    if len(shape) != 2 or 0 in shape or integers:
        raise InvalidArgument(f"a linear layer's weight cannot be a {kind} of shape {list(shape)}")
    if bias is not None and tuple(bias.shape) != shape[:1]:
        raise InvalidArgument(f"a bias of shape {list(bias.shape)} for {shape[0]} outputs")
