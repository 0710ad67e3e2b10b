"""Bound to kernels/native/src/moe.*

No Python runs between routing and the experts' products: `moe_group` writes how many rows each expert has,
and where they begin, into counters that the products read when they run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.kernels import native
from baton.kernels.linear.native_linear import NativeLinear
from baton.kernels.moe.native_args import MoeCombineArgs, MoeGroupArgs, MoeRouteArgs
from baton.kernels.moe.types import ExpertMlp, Routing, check_routing
from baton.kernels.native.program import Call, Program
from baton.kernels.silu_mul import native as silu_mul


@dataclass(frozen=True, slots=True)
class MoeShape:
    """ValueError: more experts are chosen than there are, or none."""

    experts: int
    top_k: int
    width: int
    inner: int
    renormalize: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"{self.top_k} of {self.experts} experts")


class Workspace:
    """Buffers for up to `capacity` tokens, of which a step has `rows`. Layers of one shape share them: they
    run one after another."""

    def __init__(self, shape: MoeShape, capacity: int, rows: native.Counter) -> None:
        pairs = capacity * shape.top_k
        self.shape = shape
        self.rows = rows
        self.routing = Routing(
            torch.zeros(capacity, shape.top_k, dtype=torch.int64), torch.zeros(capacity, shape.top_k)
        )
        self._places = torch.zeros(capacity, shape.top_k, dtype=torch.int64)
        self._total = native.Counter()
        self._counts, self._starts = _Counters(shape.experts), _Counters(shape.experts)
        self._gathered = torch.empty(pairs, shape.width)
        self._gate_up = torch.empty(pairs, 2 * shape.inner)
        self._inner = torch.empty(pairs, shape.inner)
        self._y = torch.empty(pairs, shape.width)

    def calls(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        out: torch.Tensor,
        mlps: Sequence[ExpertMlp],
        *,
        residual: bool = False,
    ) -> list[Call]:
        """out = the experts' results for x; residual: out += instead.

        x, out: [capacity, width] and logits: [capacity, experts]; fp32, rows contiguous. out may be x.
        """
        return [self.route_call(logits), *self.expert_calls(x, out, mlps, residual=residual)]

    def route_call(self, logits: torch.Tensor) -> Call:
        """Fills `routing`."""
        args = MoeRouteArgs(
            rows=ctypes.addressof(self.rows),
            logits=logits.data_ptr(),
            ids=self.routing.ids.data_ptr(),
            weights=self.routing.weights.data_ptr(),
            experts=self.shape.experts,
            logits_stride=logits.stride(0),
            top_k=self.shape.top_k,
            renormalize=self.shape.renormalize,
        )
        return Call(native.function("moe_route", MoeRouteArgs), args, (self, self.routing, logits))

    def expert_calls(
        self, x: torch.Tensor, out: torch.Tensor, mlps: Sequence[ExpertMlp], *, residual: bool = False
    ) -> list[Call]:
        """What comes after routing."""
        calls = [self._group_call(x)]
        spans = list(zip(mlps, self._counts, self._starts, strict=True))
        for mlp, count, start in spans:
            calls.append(_native(mlp.gate_up).call(self._gathered, self._gate_up, count, first=start))
        calls.append(silu_mul.call(self._gate_up, self._inner, self._total))
        for mlp, count, start in spans:
            calls.append(_native(mlp.down).call(self._inner, self._y, count, first=start))
        return [*calls, self._combine_call(out, residual)]

    def _group_call(self, x: torch.Tensor) -> Call:
        args = MoeGroupArgs(
            rows=ctypes.addressof(self.rows),
            ids=self.routing.ids.data_ptr(),
            x=x.data_ptr(),
            counts=self._counts.address,
            starts=self._starts.address,
            total=ctypes.addressof(self._total),
            places=self._places.data_ptr(),
            gathered=self._gathered.data_ptr(),
            experts=self.shape.experts,
            top_k=self.shape.top_k,
            width=self.shape.width,
            x_stride=x.stride(0),
        )
        return Call(native.function("moe_group", MoeGroupArgs), args, (self, self.routing, x))

    def _combine_call(self, out: torch.Tensor, residual: bool) -> Call:
        args = MoeCombineArgs(
            rows=ctypes.addressof(self.rows),
            y=self._y.data_ptr(),
            places=self._places.data_ptr(),
            weights=self.routing.weights.data_ptr(),
            out=out.data_ptr(),
            top_k=self.shape.top_k,
            width=self.shape.width,
            out_stride=out.stride(0),
            residual=residual,
        )
        return Call(native.function("moe_combine", MoeCombineArgs), args, (self, self.routing, out))


def route(logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """See `reference.route`. fp32, rows contiguous."""
    _check_rows("logits", logits)
    shape = MoeShape(logits.shape[1], top_k, 0, 0, renormalize)
    workspace = Workspace(shape, len(logits), native.Counter(len(logits)))
    one = workspace.route_call(logits)
    native.run(one.op, one.args)
    return workspace.routing


def experts(x: torch.Tensor, routing: Routing, mlps: Sequence[ExpertMlp]) -> torch.Tensor:
    """See `reference.experts`. fp32, rows contiguous; mlps: of native layers."""
    _check_rows("x", x)
    check_routing(routing, len(x), len(mlps))
    shape = MoeShape(len(mlps), routing.ids.shape[1], x.shape[1], mlps[0].down.in_features)
    workspace = Workspace(shape, len(x), native.Counter(len(x)))
    workspace.routing = Routing(routing.ids.contiguous(), routing.weights.contiguous())
    out = torch.empty(x.shape)
    Program(workspace.expert_calls(x, out, mlps))()
    return out


class _Counters(list[native.Counter]):
    """Counters side by side, at `address`."""

    def __init__(self, count: int) -> None:
        array = (ctypes.c_int64 * count)()
        super().__init__(native.Counter.from_buffer(array, 8 * i) for i in range(count))
        self.address = ctypes.addressof(array)
        self._array = array


def _check_rows(name: str, x: torch.Tensor) -> None:
    apart = x.dim() == 2 and x.stride(1) != 1 and x.numel() > len(x)
    if x.dtype is not torch.float32 or x.dim() != 2 or apart:
        raise ValueError(f"{name} must be fp32 [rows, width], rows contiguous: {x.dtype} {list(x.shape)}")


def _native(layer: object) -> NativeLinear:
    if not isinstance(layer, NativeLinear):
        raise TypeError(f"experts must be native layers, got {type(layer).__name__}")
    return layer
