"""y = x @ weight.T + bias, for a weight that is prepared once and then used many times.

    layer = native.prepare(weight, bias)    # or that of cpu, reference, triton: one per backend
    y = layer(x)

weight: [out, in], a tensor as checkpoints store it or a `QuantizedWeight`; bias: [out] or None. Any size but
0. What was prepared keeps no reference to a weight that it stores otherwise: the caller may let go of it.

A token's row of y depends on its row of x alone, never on the other rows, whatever they hold. With a
`QuantizedWeight` that names `activations`, x is rounded as `reference.round_activations` says.
"""

from __future__ import annotations

from typing import Protocol

import torch

from baton.kernels.quantize import QuantizedWeight

Weight = torch.Tensor | QuantizedWeight


class Linear(Protocol):
    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Held in memory: weight, scales, bias."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out], both of one dtype. Not necessarily contiguous."""
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[n] int64 to [n, in]: the weight's rows, without bias, in the dtype that the layer computes in. So
        a table of embeddings that is the head as well is stored once."""
        ...


class Prepare(Protocol):
    """What each backend's module offers as `prepare`. InvalidArgument: these shapes or formats do not fit."""

    def __call__(self, weight: Weight, bias: torch.Tensor | None = None) -> Linear: ...
