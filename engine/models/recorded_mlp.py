"""The calls of a layer's MLP, dense or of experts, and the buffers that those of all layers share."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.engine.models.decoder import Decoder, Mlp, Moe
from baton.kernels.linear import Linear
from baton.kernels.linear.native import NativeLinear
from baton.kernels.moe.native import MoeShape, Workspace
from baton.kernels.native import Counter
from baton.kernels.native.program import Call
from baton.kernels.silu_mul import native as silu_mul


def compiled(layer: Linear) -> NativeLinear:
    """The layer, which the native backend prepared."""
    if not isinstance(layer, NativeLinear):
        raise TypeError(f"a recorded decoder is made of native layers, not of {type(layer).__name__}")
    return layer


class RecordedMlps:
    """For up to `capacity` rows."""

    def __init__(self, decoder: Decoder, capacity: int) -> None:
        self._capacity = capacity
        dense = [layer.mlp for layer in decoder.layers if not isinstance(layer.mlp, Moe)]
        inner = max((mlp.down.in_features for mlp in dense), default=0)
        self._gate_up = torch.empty(capacity, 2 * inner)
        self._gated = torch.empty(capacity, inner)
        moes = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Moe)]
        self._router = torch.empty(capacity, max((len(moe.experts) for moe in moes), default=0))
        self._workspaces: dict[tuple[MoeShape, int], Workspace] = {}

    def calls(self, mlp: Mlp | Moe, x: torch.Tensor, out: torch.Tensor, rows: Counter) -> Iterator[Call]:
        """out += mlp(x) of the first `rows` rows; both [capacity, hidden]."""
        if isinstance(mlp, Moe):
            workspace = self._workspace(mlp, rows)
            yield compiled(mlp.router).call(x, self._router, rows)
            yield from workspace.calls(x, self._router, out, mlp.experts, residual=True)
            return
        yield compiled(mlp.gate_up).call(x, self._gate_up, rows)
        yield silu_mul.call(self._gate_up, self._gated, rows)
        yield compiled(mlp.down).call(self._gated, out, rows, residual=True)

    def _workspace(self, moe: Moe, rows: Counter) -> Workspace:
        """Shared by all layers of one shape that run on the same rows."""
        down = moe.experts[0].down
        shape = MoeShape(len(moe.experts), moe.chosen, down.out_features, down.in_features, moe.normalized)
        key = (shape, id(rows))
        if key not in self._workspaces:
            self._workspaces[key] = Workspace(shape, self._capacity, rows)
        return self._workspaces[key]
