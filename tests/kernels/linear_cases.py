"""Digests of what native layers give for fixed inputs: the same on every instruction set.

Run as a program (with BATON_CPU_ISA set, say) it prints them as JSON.
"""

from __future__ import annotations

import json
from hashlib import sha256

import torch

from baton.kernels import native
from baton.kernels.linear.native import NativeLinear, prepare
from baton.kernels.quantize import Codes, WeightScheme, quantize

DENSE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP8 = {
    "e4m3 rows": WeightScheme(Codes.FP8),
    "e4m3 groups": WeightScheme(Codes.FP8, group=24),
    "e4m3 both": WeightScheme(Codes.FP8, group=48, activations="fp8", activation_group=20),
}
FORMATS = (*DENSE, *FP8)
ROWS = (1, 2, 3, 5, 8, 9, 13, 14, 31)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeLinear:
    """Of a format of FORMATS."""
    if name in DENSE:
        return prepare(weight.to(DENSE[name]), bias)
    return prepare(quantize(weight, FP8[name]), bias)


def digests() -> dict[str, str]:
    found = {}
    for name in FORMATS:
        for out, inputs in ((7, 5), (331, 70), (40, 2100)):
            prepared = layer(name, noise(out, inputs), noise(out, seed=1))
            results = [prepared(noise(rows, inputs, seed=rows)) for rows in ROWS]
            results.append(prepared.rows(torch.tensor([0, out - 1, 3])))
            data = b"".join(result.numpy().tobytes() for result in results)
            found[f"{name} {out} x {inputs}"] = sha256(data).hexdigest()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"isa": native.isa(), "digests": digests()}))
