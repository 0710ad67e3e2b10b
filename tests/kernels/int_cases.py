"""Formats of integer weights, and digests of what they give: the same on every instruction set.

Run as a program (with BATON_CPU_ISA set, say) it prints them as JSON.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import torch

from baton.kernels import native
from baton.kernels.linear.native import prepare
from baton.kernels.quantize import Codes, QuantizedWeight, ScaleFormat, WeightScheme, quantize, scheme
from tests.kernels.linear_cases import noise

_SCHEMES = {
    "int8": scheme("int8"),
    "int8 asymmetric": WeightScheme(Codes.INT8, symmetric=False),
    "int8 groups": WeightScheme(Codes.INT8, group=48, symmetric=False, scale=ScaleFormat.BF16),
    "int4": scheme("int4"),
    "int4 rows": WeightScheme(Codes.INT4),
    "int4 128": WeightScheme(Codes.INT4, group=128, scale=ScaleFormat.BF16),
    "int4 of 5": WeightScheme(Codes.INT4, group=5),
    "mxfp4": scheme("mxfp4"),
    "nvfp4": scheme("nvfp4"),
    "w8a8": scheme("int8-w8a8"),
    "w8a8 tokens": WeightScheme(Codes.INT8, activations="int8", activation_group=4096),
    "w8a8 crossed": WeightScheme(Codes.INT8, group=48, activations="int8", activation_group=20),
    "w4a8": scheme("int4-w4a8"),
    "fp4a8": replace(scheme("mxfp4"), activations="int8"),
}
_HALVES = {  # as GGUF has them, with scales in fp16
    "q8_0": WeightScheme(Codes.INT8, group=32),
    "q4_0": WeightScheme(Codes.INT4, group=32),
    "q4_1": WeightScheme(Codes.INT4, group=32, symmetric=False),
}
FORMATS = (*_SCHEMES, *_HALVES, "int4 ordered", "w8a8 ordered")
ROWS = (1, 2, 3, 4, 7, 8, 15, 16, 29, 33, 50)


def quantized(name: str, weight: torch.Tensor) -> QuantizedWeight:
    """Of a format of FORMATS."""
    if name in _HALVES:
        made = quantize(weight, _HALVES[name])
        return replace(
            made, scale=made.scale.half(), offset=None if made.offset is None else made.offset.half()
        )
    if name.endswith(" ordered"):
        made = quantize(weight, _SCHEMES[name.removesuffix(" ordered")])
        return replace(
            made, in_order=torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5))
        )
    return quantize(weight, _SCHEMES[name])


def digests() -> dict[str, str]:
    found = {}
    for name in FORMATS:
        for out, inputs in ((7, 5), (331, 70), (40, 1100), (100, 640)):
            prepared = prepare(quantized(name, noise(out, inputs)), noise(out, seed=1))
            results = [prepared(noise(rows, inputs, seed=rows)) for rows in ROWS]
            results.append(prepared.rows(torch.tensor([0, out - 1, 3])))
            data = b"".join(result.numpy().tobytes() for result in results)
            found[f"{name} {out} x {inputs}"] = sha256(data).hexdigest()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"isa": native.isa(), "digests": digests()}))
