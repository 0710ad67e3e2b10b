"""Experts on GPUs: two launches multiply by all of them, without the host knowing who got which tokens.

The (token, choice) pairs are laid into tiles of rows, each of one expert, and the product's kernel finds its
weight by the tile. Results stay at their pair's place, so that nothing is sorted back. What experts have not
in common (a form, a shape; an order of inputs) takes the way of the reference, expert by expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from baton.kernels.linear.triton import TritonLinear
from baton.kernels.linear.triton_inputs import prepare_inputs
from baton.kernels.linear.triton_launch import (
    Experts,
    Target,
    alike,
    dot_type,
    expert_table,
    product_launch,
    tile_of,
)
from baton.kernels.linear.triton_tuning import Tile
from baton.kernels.moe import reference
from baton.kernels.moe.triton_kernel import combine_kernel, count_kernel, place_kernel, route_kernel
from baton.kernels.moe.types import ExpertMlp, Routing
from baton.kernels.silu_mul.triton import silu_mul
from baton.kernels.triton_support.device import Gpu, gpu_of
from baton.kernels.triton_support.launch import Launch

_PAIRS = 1024  # that a program looks at in one go
_COLUMNS = 1024


def route(logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """See `reference.route`. Computed in fp32, whatever the logits' dtype."""
    tokens = len(logits)
    routing = Routing(
        logits.new_empty((tokens, top_k), dtype=torch.int64),
        logits.new_empty((tokens, top_k), dtype=torch.float32),
    )
    route_launch(logits, routing, renormalize=renormalize).run()
    return routing


def route_launch(logits: torch.Tensor, routing: Routing, *, renormalize: bool) -> Launch:
    tokens, experts = logits.shape
    arguments = {
        "logits_ptr": logits,
        "ids_ptr": routing.ids,
        "weights_ptr": routing.weights,
        "logits_stride": logits.stride(0),
        "EXPERTS": experts,
        "TOP_K": routing.ids.shape[1],
        "RENORMALIZE": renormalize,
        "TILE_E": triton.next_power_of_2(experts),
        "TILE_K": triton.next_power_of_2(routing.ids.shape[1]),
    }
    return Launch(route_kernel, (tokens,), arguments, warps=1, stages=1)


def experts(x: torch.Tensor, routing: Routing, mlps: Sequence[ExpertMlp]) -> torch.Tensor:
    """See `reference.experts`."""
    layers = _layers(mlps)
    if layers is None or not len(x):
        return reference.experts(x, routing, mlps)
    plan = _Plan(routing.ids, layers, x)
    gate_up, down = mlps[0].gate_up, mlps[0].down
    middle = x.new_empty(routing.ids.numel(), gate_up.out_features)
    plan.multiply(x, layers.gate_up, middle, plan.tokens)
    y = x.new_empty(routing.ids.numel(), down.out_features)
    plan.multiply(silu_mul(middle), layers.down, y, plan.pairs)
    out = x.new_empty(len(x), down.out_features)
    combine_launch(y, routing.weights, out).run()
    return out


def combine_launch(y: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> Launch:
    """y: [tokens * top_k, width], a token's experts side by side; weights: [tokens, top_k] fp32."""
    tokens, width = out.shape
    tile = min(_COLUMNS, triton.next_power_of_2(width))
    arguments = {
        "y_ptr": y,
        "weights_ptr": weights.contiguous(),
        "out_ptr": out,
        "width": width,
        "TOP_K": weights.shape[1],
        "TILE": tile,
    }
    return Launch(combine_kernel, (tokens, triton.cdiv(width, tile)), arguments, stages=1)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two products: a layer that stands for all, and where all of them are."""

    layer: TritonLinear
    table: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layers:
    mlps: Sequence[ExpertMlp]  # keeps alive what the tables point to
    gate_up: _Side
    down: _Side


def _layers(mlps: Sequence[ExpertMlp]) -> _Layers | None:
    """None: they are not alike. Made once and kept with the first layer."""
    first = mlps[0].gate_up
    if not isinstance(first, TritonLinear):
        return None
    kept = first.derived.get("experts")
    if isinstance(kept, _Layers) and kept.mlps is mlps:
        return kept
    gate_up, down = _side([mlp.gate_up for mlp in mlps]), _side([mlp.down for mlp in mlps])
    if gate_up is None or down is None:
        return None
    first.derived["experts"] = made = _Layers(mlps, gate_up, down)
    return made


def _side(layers: Sequence[object]) -> _Side | None:
    ours = [layer for layer in layers if isinstance(layer, TritonLinear)]
    biases = {None if layer.bias is None else layer.bias.dtype for layer in ours}
    if len(ours) < len(layers) or len(biases) > 1 or not alike([layer.weight for layer in ours]):
        return None
    gpu = gpu_of(ours[0].weight.data.device)
    return _Side(ours[0], expert_table([o.weight for o in ours], [o.bias for o in ours], gpu))


class _Plan:
    """Which pairs lie in which tiles. tokens, pairs: [tiles * rows] int32, of each row, -1: none."""

    def __init__(self, ids: torch.Tensor, layers: _Layers, x: torch.Tensor) -> None:
        count, pairs = len(layers.mlps), ids.numel()
        self._gpu = gpu_of(x.device)
        self._tile = _tile(pairs, count, layers.gate_up.layer, x, self._gpu)
        tiles = pairs // self._tile.rows + min(pairs, count)
        self._tile_experts = ids.new_full((tiles,), -1, dtype=torch.int32)
        self.tokens = ids.new_full((tiles * self._tile.rows,), -1, dtype=torch.int32)
        self.pairs = torch.full_like(self.tokens, -1)
        counts = ids.new_empty(count, dtype=torch.int32)
        for launch in self._launches(ids.contiguous(), counts):
            launch.run()

    def multiply(self, x: torch.Tensor, side: _Side, out: torch.Tensor, in_rows: torch.Tensor) -> None:
        """in_rows: which row of x each row of the plan is; its result goes to its pair's row of out."""
        weight, bias = side.layer.weight, side.layer.bias
        inputs, before = prepare_inputs(x, weight)
        where = Experts(side.table, self._tile_experts, in_rows, self.pairs, self._tile)
        product = product_launch(inputs, weight, Target(out, bias), self._gpu, where)
        for launch in (*before, product):
            launch.run()

    def _launches(self, ids: torch.Tensor, counts: torch.Tensor) -> list[Launch]:
        experts, pairs = len(counts), ids.numel()
        tile = min(_PAIRS, triton.next_power_of_2(pairs))
        common = {"ids_ptr": ids, "counts_ptr": counts, "pairs": pairs, "TILE": tile}
        own = {
            "tile_experts_ptr": self._tile_experts,
            "tokens_ptr": self.tokens,
            "pairs_ptr": self.pairs,
            "EXPERTS": experts,
            "TOP_K": ids.shape[1],
            "ROWS": self._tile.rows,
            "TILE_E": triton.next_power_of_2(experts),
        }
        return [
            Launch(count_kernel, (experts,), common, stages=1),
            Launch(place_kernel, (experts,), {**common, **own}, stages=1),
        ]


def _tile(pairs: int, experts: int, layer: TritonLinear, x: torch.Tensor, gpu: Gpu) -> Tile:
    """By what an expert gets on average."""
    inputs = prepare_inputs(x[:0], layer.weight)[0]
    return tile_of(triton.cdiv(pairs, experts), layer.weight, dot_type(inputs.x, layer.weight, gpu), gpu)
