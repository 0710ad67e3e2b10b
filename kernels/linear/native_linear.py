"""What all natively computed layers share: calls for recorded programs, and eager ones made of them.

Activations are fp32 on the CPU. A row's result has the same bits alone and among others, on any number of
threads and with either instruction set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from baton.kernels import native
from baton.kernels.native.program import Call


@dataclass(frozen=True, slots=True)
class Norm:
    """Of rows, before a product: see `kernels.rms_norm`. weight: [in] fp32, contiguous."""

    weight: torch.Tensor
    eps: float


class NativeLinear(ABC):
    """See `Linear`. Sizes and memory are set by the subclass, before use."""

    in_features: int
    out_features: int
    nbytes: int

    def call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        *,
        first: native.Counter | None = None,
        residual: bool = False,
    ) -> Call:
        """out = x @ weight.T + bias of the first `rows` rows, or of `rows` rows from row `first` on.

        x: [capacity, in]; out: [capacity, out]; fp32, each row contiguous, any distance between rows; they do
        not overlap. residual: out += instead. The counters are read when the call runs.
        """
        check_buffer("x", x, self.in_features)
        check_buffer("out", out, self.out_features)
        return self._call(x, out, rows, first, residual)

    def fused_call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        *,
        norm: Norm | None = None,
        gated: bool = False,
    ) -> Call | None:
        """`call` with what comes before and after it in one operation, to the bit what they give one by one.

        norm: of x, first. gated: silu_mul's result goes to out, [capacity, out / 2]. None: not to be had."""
        return None

    def rows_call(self, ids: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call:
        """out[i] = the weight's row ids[i] for the first `rows` ids.

        ids: [capacity] int64, contiguous; out: [capacity, in] as in `call`. Ids outside the table give NaN.
        """
        if ids.dtype is not torch.int64 or ids.dim() != 1 or not ids.is_contiguous():
            raise ValueError(f"ids must be contiguous int64 [capacity], got {ids.dtype} {list(ids.shape)}")
        check_buffer("out", out, self.in_features)
        return self._rows_call(ids, out, rows)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty(flat.shape[0], self.out_features)
        _run(self.call(flat, out, native.Counter(len(flat))))
        return out.view(*x.shape[:-1], self.out_features)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(ids), self.in_features)
        _run(self.rows_call(ids.contiguous(), out, native.Counter(len(ids))))
        return out

    @abstractmethod
    def _call(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        rows: native.Counter,
        first: native.Counter | None,
        residual: bool,
    ) -> Call: ...

    @abstractmethod
    def _rows_call(self, ids: torch.Tensor, out: torch.Tensor, rows: native.Counter) -> Call: ...


def _run(call: Call) -> None:
    native.run(call.op, call.args)


def check_buffer(name: str, buffer: torch.Tensor, width: int) -> None:
    if buffer.dtype is not torch.float32 or buffer.device.type != "cpu":
        raise ValueError(f"{name} must be fp32 on the CPU, got {buffer.dtype} on {buffer.device}")
    if buffer.dim() != 2 or buffer.shape[1] != width:
        raise ValueError(f"{name} must be [capacity, {width}], got {list(buffer.shape)}")
    if buffer.stride(1) != 1 and width > 1:
        raise ValueError(f"{name}'s rows must be contiguous, got strides {buffer.stride()}")
