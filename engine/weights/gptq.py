"""GPTQ as AutoGPTQ and GPTQModel store it (arXiv:2210.17323).

qweight [in / n, out] int32, n values of consecutive inputs to a word; qzeros [groups, out / n] likewise along
the outputs; scales [groups, out]; g_idx [in], the group of each input, which activation order (desc_act)
scatters. The first format stores zero - 1, the second ("gptq_v2") the zero itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from baton.core.errors import InvalidArgument
from baton.engine.weights.packed import affine, input_order, per_word, unpack_words
from baton.engine.weights.parts import Parts
from baton.engine.weights.source import Shape
from baton.kernels.quantize import QuantizedWeight

_ZERO_LESS_BY = {"gptq": 1, "gptq_v2": 0}


class Gptq:
    """See `Layout`. options: the quantization_config."""

    marks = ("qweight",)
    companions = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._bits = int(options.get("bits", 4))
        self._per_word = per_word(self._bits)
        self._group = int(options.get("group_size", -1))
        form = options.get("checkpoint_format") or "gptq"
        if form not in _ZERO_LESS_BY:
            raise InvalidArgument(f"checkpoint_format {form!r}; {', '.join(_ZERO_LESS_BY)} are known")
        self._zero_less_by = _ZERO_LESS_BY[form]
        # Exceptions ("-:pattern") need no care: such a module simply has no qweight.
        changed = [name for name in options.get("dynamic") or () if not name.startswith("-")]
        if changed:
            raise InvalidArgument(
                f"modules with settings of their own (dynamic: {changed[0]!r}) are not known"
            )

    def shape(self, parts: Parts) -> Shape:
        words, outputs = parts.matrix_shape("qweight")
        return outputs, words * self._per_word

    def read(self, parts: Parts) -> QuantizedWeight:
        outputs, inputs = self.shape(parts)
        group = self._group if self._group > 0 else inputs
        codes = unpack_words(parts["qweight"].t(), self._bits)
        zeros = unpack_words(parts["qzeros"], self._bits) + self._zero_less_by
        # A zero of 0 is stored as -1, and so comes back around.
        zeros = (zeros & ((1 << self._bits) - 1))[:, :outputs].t()
        g_idx = parts.get("g_idx")
        order = None if g_idx is None else input_order(g_idx, inputs, group)
        if order is not None:
            codes = codes[:, order]
        weight = affine(codes, parts["scales"].t(), zeros, self._bits, min(group, inputs))
        return replace(weight, in_order=order)
