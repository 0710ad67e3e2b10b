"""AWQ as AutoAWQ stores it for its "gemm" kernels (arXiv:2306.00978).

qweight [in, out / 8] int32, qzeros [groups, out / 8], scales [groups, out]. The eight values of a word belong
to consecutive outputs, though not in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.packed import affine, unpack_words
from baton.engine.weights.parts import Parts
from baton.engine.weights.source import Shape
from baton.kernels.quantize import QuantizedWeight

_BITS, _PER_WORD = 4, 8
_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)  # which output of the eight is at each place, the lowest bits first


class Awq:
    """See `Layout`. options: the quantization_config."""

    marks = ("qweight",)
    companions = ("qweight", "qzeros", "scales")

    def __init__(self, options: Mapping[str, Any]) -> None:
        bits = int(options.get("bits", options.get("w_bit", _BITS)))
        version = str(options.get("version", "gemm")).lower()
        if bits != _BITS:
            raise InvalidArgument(f"{bits} bits are not known, {_BITS} are")
        if version != "gemm":
            raise InvalidArgument(f"version {version!r} is not known, 'gemm' is")
        if not options.get("zero_point", True):
            raise InvalidArgument("zero_point false is not known")
        self._group = int(options.get("group_size", options.get("q_group_size", 128)))

    def shape(self, parts: Parts) -> Shape:
        inputs, words = parts.matrix_shape("qweight")
        return words * _PER_WORD, inputs

    def read(self, parts: Parts) -> QuantizedWeight:
        inputs = self.shape(parts)[1]
        group = self._group if self._group > 0 else inputs
        codes, zeros = _in_order(parts["qweight"]), _in_order(parts["qzeros"])
        return affine(codes.t(), parts["scales"].t(), zeros.t(), _BITS, min(group, inputs))


def _in_order(words: torch.Tensor) -> torch.Tensor:
    """[rows, n] int32 to [rows, 8 n] uint8, outputs ascending."""
    values = unpack_words(words, _BITS).view(words.shape[0], -1, _PER_WORD)
    place = torch.tensor(_OUTPUTS).argsort()
    return values[..., place].flatten(1)
