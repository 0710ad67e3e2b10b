"""Linear layers on GPUs, dense and quantised.

Weights are read as they are stored and become fp16 or bf16 in registers, exactly: scales and offsets meet the
sums of their group, in fp32. (Groups that end anywhere but at multiples of 16 inputs are scaled code by
code.) With `activations`, codes are multiplied by codes. fp32 inputs are multiplied exactly, without tensor
cores.

A row's result depends on neither the other rows nor their number: the order of sums is fixed by the weight
(`triton_weights.Steps`), and no product is split over its inputs. Under TRITON_INTERPRET=1 (set before triton
is imported) the same code runs on CPU tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from baton.kernels.linear.checks import check
from baton.kernels.linear.triton_inputs import prepare_inputs
from baton.kernels.linear.triton_launch import Target, product_launch
from baton.kernels.linear.triton_rows import rows_launch
from baton.kernels.linear.triton_weights import Stored, store
from baton.kernels.quantize import QuantizedWeight
from baton.kernels.triton_support.device import Gpu, gpu_of
from baton.kernels.triton_support.launch import Launch


@dataclass(frozen=True, slots=True, eq=False)
class TritonLinear:
    """See the package's `Linear`. derived: what others make of the layer once, kept as long as it lives."""

    weight: Stored
    bias: torch.Tensor | None
    derived: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def in_features(self) -> int:
        return self.weight.inputs

    @property
    def out_features(self) -> int:
        return self.weight.outputs

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(*x.shape[:-1], self.out_features)
        flat = x.reshape(-1, self.in_features)
        flat = flat if flat.stride(1) == 1 else flat.contiguous()
        for launch in self.launches(flat, out.view(-1, self.out_features), gpu_of(x.device)):
            launch.run()
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        if self.weight.form == "dense":
            return self.weight.data[ids]
        out = self.weight.data.new_empty((len(ids), self.in_features), dtype=torch.float32)
        rows_launch(self.weight, ids, out).run()
        return out

    def launches(self, x: torch.Tensor, out: torch.Tensor, gpu: Gpu) -> list[Launch]:
        """What a call runs, in order. x: [rows, in], contiguous in a row; out: [rows, out], contiguous."""
        inputs, before = prepare_inputs(x, self.weight)
        return [*before, product_launch(inputs, self.weight, Target(out, self.bias), gpu)]


def prepare(weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None) -> TritonLinear:
    check(weight, bias)
    return TritonLinear(store(weight), bias)
