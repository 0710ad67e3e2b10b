"""The calls of a layer's MLP, dense or of experts, and the buffers that those of all layers share."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.engine.models.decoder import Decoder, Mlp, Moe
from baton.kernels.linear import Linear
from baton.kernels.linear.native import NativeLinear, Norm
from baton.kernels.moe.native import MoeShape, Workspace
from baton.kernels.native import Counter
from baton.kernels.native.program import Call
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.silu_mul import native as silu_mul


def compiled(layer: Linear) -> NativeLinear:
    """The layer, which the native backend prepared."""
    if not isinstance(layer, NativeLinear):
        raise TypeError(f"a recorded decoder is made of native layers, not of {type(layer).__name__}")
    return layer


def after_norm(
    layer: NativeLinear, x: torch.Tensor, norm: Norm, normed: torch.Tensor, out: torch.Tensor, rows: Counter
) -> Iterator[Call]:
    """out = layer(norm(x)) of the first `rows` rows. normed: room for norm(x), which it may hold then."""
    fused = layer.fused_call(x, out, rows, norm=norm)
    if fused is not None:
        yield fused
        return
    yield rms_norm.call(x, norm.weight, norm.eps, normed, rows)
    yield layer.call(normed, out, rows)


class RecordedMlps:
    """For up to `capacity` rows. normed: [capacity, hidden], room for what is between two operations."""

    def __init__(self, decoder: Decoder, capacity: int, normed: torch.Tensor) -> None:
        self._capacity = capacity
        self._normed = normed
        dense = [layer.mlp for layer in decoder.layers if not isinstance(layer.mlp, Moe)]
        inner = max((mlp.down.in_features for mlp in dense), default=0)
        self._gate_up = torch.empty(capacity, 2 * inner)
        self._gated = torch.empty(capacity, inner)
        moes = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Moe)]
        self._router = torch.empty(capacity, max((len(moe.experts) for moe in moes), default=0))
        self._workspaces: dict[tuple[MoeShape, int], Workspace] = {}

    def calls(self, mlp: Mlp | Moe, norm: Norm, x: torch.Tensor, rows: Counter) -> Iterator[Call]:
        """x += mlp(norm(x)) of the first `rows` rows of [capacity, hidden]."""
        if isinstance(mlp, Moe):
            workspace = self._workspace(mlp, rows)
            yield rms_norm.call(x, norm.weight, norm.eps, self._normed, rows)
            yield compiled(mlp.router).call(self._normed, self._router, rows)
            yield from workspace.calls(self._normed, self._router, x, mlp.experts, residual=True)
            return
        gate_up = compiled(mlp.gate_up)
        fused = gate_up.fused_call(x, self._gated, rows, norm=norm, gated=True)
        if fused is not None:
            yield fused
        else:
            yield from after_norm(gate_up, x, norm, self._normed, self._gate_up, rows)
            yield silu_mul.call(self._gate_up, self._gated, rows)
        yield compiled(mlp.down).call(self._gated, x, rows, residual=True)

    def _workspace(self, moe: Moe, rows: Counter) -> Workspace:
        """Shared by all layers of one shape that run on the same rows."""
        down = moe.experts[0].down
        shape = MoeShape(len(moe.experts), moe.chosen, down.out_features, down.in_features, moe.normalized)
        key = (shape, id(rows))
        if key not in self._workspaces:
            self._workspaces[key] = Workspace(shape, self._capacity, rows)
        return self._workspaces[key]
