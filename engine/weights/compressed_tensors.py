"""The compressed-tensors layout, as llm-compressor writes it.

Integers: `weight` int8, or `weight_packed` int32 words of codes + 2^(bits - 1) and `weight_shape`; scales
[1], [out, 1] or [out, groups]; zero points of the scales' shape, packed along the outputs if the codes are.
FP8: `weight`. FP4: `weight_packed` uint8, the even input in the low nibble, scales in e4m3 under
`weight_global_scale`, which divides, or in e8m0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.compressed_schemes import ModuleScheme, Schemes
from baton.engine.weights.packed import affine, input_order, per_word, unpack_words
from baton.engine.weights.parts import Parts
from baton.engine.weights.source import Shape
from baton.engine.weights.spread import fp8_weight, spread
from baton.kernels.quantize import Codes, QuantizedWeight

_E8M0_BIAS = 127


class CompressedTensors:
    """See `Layout`. options: the quantization_config."""

    marks = ("weight_packed", "weight_scale")
    companions = (
        "weight_packed",
        "weight_shape",
        "weight_scale",
        "weight_zero_point",
        "weight_global_scale",
        "weight_g_idx",
        # Of activations, measured beforehand: see `compressed_schemes`.
        "input_scale",
        "input_zero_point",
        "input_global_scale",
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._schemes = Schemes(options)

    def shape(self, parts: Parts) -> Shape:
        if "weight_packed" not in parts:
            return parts.matrix_shape("weight")
        if self._schemes.of(parts.module).kind == "float":
            out, packed = parts.matrix_shape("weight_packed")
            return out, 2 * packed
        return _told_shape(parts["weight_shape"])

    def read(self, parts: Parts) -> QuantizedWeight:
        scheme = self._schemes.of(parts.module)
        if scheme.kind == "int":
            weight = _integers(parts, scheme, self.shape(parts))
        elif scheme.bits == 8:
            weight = fp8_weight(parts["weight"], parts["weight_scale"], scheme.group, scheme.block)
        else:
            weight = _fp4(parts, scheme)
        return replace(weight, activations=scheme.activations)


def _told_shape(told: torch.Tensor) -> Shape:
    sizes = told.flatten().tolist()
    if told.is_floating_point() or len(sizes) != 2 or min(sizes) < 1:
        raise InvalidArgument(f"weight_shape must be two sizes, got {sizes}")
    return sizes[0], sizes[1]


def _integers(parts: Parts, scheme: ModuleScheme, shape: Shape) -> QuantizedWeight:
    (out, inputs), bits = shape, scheme.bits
    scale, group = spread(parts["weight_scale"], out, inputs, scheme.group, scheme.block)
    if "weight_packed" in parts:
        words = parts["weight_packed"]
        if words.shape != (out, -(-inputs // per_word(bits))):
            raise InvalidArgument(
                f"weight_packed is {list(words.shape)}, which is not {out} x {inputs} codes"
            )
        codes = unpack_words(words, bits)[:, :inputs]
    else:
        codes = _unsigned(parts["weight"], bits)
    zeros = parts.get("weight_zero_point")
    if zeros is not None:
        zeros = _zeros(zeros, bits, out)
        zeros, _ = spread(zeros, out, inputs, scheme.group, scheme.block)
    g_idx = parts.get("weight_g_idx")
    order = None if g_idx is None else input_order(g_idx, inputs, group)
    if order is not None:
        codes = codes[:, order]
    return replace(affine(codes, scale, zeros, bits, group), in_order=order)


def _unsigned(codes: torch.Tensor, bits: int) -> torch.Tensor:
    if codes.dtype is not torch.int8:
        raise InvalidArgument(f"weight is {codes.dtype}, not int8")
    return (codes.short() + (1 << (bits - 1))).to(torch.uint8)


def _zeros(zeros: torch.Tensor, bits: int, out: int) -> torch.Tensor:
    """Unsigned zero points; packed ones are unpacked along the outputs."""
    if zeros.dtype is torch.int32 and zeros.dim() == 2 and zeros.shape[0] == -(-out // per_word(bits)):
        return unpack_words(zeros.t(), bits)[:, :out].t()
    return zeros.short() + (1 << (bits - 1))


def _fp4(parts: Parts, scheme: ModuleScheme) -> QuantizedWeight:
    packed, scale = parts["weight_packed"], parts["weight_scale"]
    out, inputs = packed.shape[0], 2 * packed.shape[1]
    if scale.dtype is torch.uint8:
        scale = torch.ldexp(torch.ones(scale.shape), scale.int() - _E8M0_BIAS)
    scale, group = spread(scale.to(torch.bfloat16), out, inputs, scheme.group)
    divisor = parts.get("weight_global_scale")
    global_scale = 1.0 if divisor is None else 1.0 / _divisor(divisor)
    return QuantizedWeight(Codes.FP4, packed.contiguous(), scale, inputs, group, global_scale=global_scale)


def _divisor(scale: torch.Tensor) -> float:
    values = scale.flatten().tolist()
    if len(values) != 1 or not 0.0 < values[0] < math.inf:  # false for NaN, too
        raise InvalidArgument(f"weight_global_scale must be one number above 0, got {values}")
    return float(values[0])
