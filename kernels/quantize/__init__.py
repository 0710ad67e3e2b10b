"""Weights in few bits: how they are stored, made and read back.

    w = quantize(weight, scheme("int4"))      # weight [out, in], any float dtype
    dequantize(w)                             # [out, in], fp32
    concat([q, k, v])                         # along the outputs, if they are stored alike

A `QuantizedWeight` stands for

    value[o, i] = scale[o, g] * global_scale * (code[o, j] - zero_point) + offset[o, g]     g = j // group

where j is the place of input i: i itself, or, where `in_order` is set, in_order[j] = i. The last group is the
rest of a row when `group` does not divide it. Everything is finite, whatever the weight's size.
"""

from __future__ import annotations

from baton.kernels.quantize.concat import concat, concat_obstacle
from baton.kernels.quantize.reference import dequantize, quantize
from baton.kernels.quantize.scheme import SCHEMES, ScaleFormat, WeightScheme, scheme
from baton.kernels.quantize.weight import FP4_VALUES, Activations, Codes, QuantizedWeight, pack4, unpack4

__all__ = [
    "FP4_VALUES",
    "SCHEMES",
    "Activations",
    "Codes",
    "QuantizedWeight",
    "ScaleFormat",
    "WeightScheme",
    "concat",
    "concat_obstacle",
    "dequantize",
    "pack4",
    "quantize",
    "scheme",
    "unpack4",
]
