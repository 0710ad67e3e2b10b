"""FP8 as DeepSeek-V3 brought it (arXiv:2412.19437, section 3.3): `weight` e4m3, a scale per block of rows and
inputs in `weight_scale_inv`, which despite its name multiplies; or one per matrix in `weight_scale`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from baton.core.errors import InvalidArgument
from baton.engine.weights.parts import Parts
from baton.engine.weights.source import Shape
from baton.engine.weights.spread import block_of, fp8_weight
from baton.kernels.quantize import QuantizedWeight


class FineGrainedFp8:
    """See `Layout`. options: the quantization_config."""

    marks = ("weight_scale_inv", "weight_scale")
    companions = ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale")

    def __init__(self, options: Mapping[str, Any]) -> None:
        if (form := options.get("fmt", "e4m3")) != "e4m3":
            raise InvalidArgument(f"fmt {form!r} is not known, 'e4m3' is")
        block = options.get("weight_block_size")
        self._block = None if block is None else block_of(block, "weight_block_size")

    def shape(self, parts: Parts) -> Shape:
        return parts.matrix_shape("weight")

    def read(self, parts: Parts) -> QuantizedWeight:
        name = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
        weight = fp8_weight(parts["weight"], parts[name], block=self._block)
        return replace(weight, activations="fp8")
