"""A checkpoint of a mixture of experts, whichever way it names and stacks them, with one name per matrix.

    model.layers.3.mlp.gate.weight                       the router, [experts, hidden]
    model.layers.3.mlp.experts.7.{gate,up,down}_proj.weight

Mixtral's checkpoints say block_sparse_moe and w1, w3, w2. Some stack the experts of a layer:
mlp.experts.gate_up_proj [experts, 2 * intermediate, hidden], gate first, and mlp.experts.down_proj.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.source import Shape, WeightSource
from baton.kernels.quantize import QuantizedWeight

_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL_NAME = re.compile(r"(.*\.experts\.\d+)\.(w[123])(\..*)")
_STACKED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


class _Place(NamedTuple):
    """Where a matrix is: a parameter, or (expert, rows) of a stacked one."""

    name: str
    expert: int = -1
    rows: slice = slice(None)


class Experts:
    """See `WeightSource`; `source` under the names above."""

    def __init__(self, source: WeightSource) -> None:
        self.where = source.where
        self._source = source
        self._shapes: dict[str, Shape] = {}
        self._places: dict[str, _Place] = {}
        for stored, shape in source.shapes().items():
            for name, part, place in _matrices(source.where, stored, tuple(shape)):
                self._shapes[name], self._places[name] = part, place
        self.spare = frozenset(name for name, place in self._places.items() if place.name in source.spare)
        self._stack: tuple[str, torch.Tensor] | None = None

    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def copy_into(self, name: str, out: torch.Tensor) -> None:
        place = self._places[name]
        if place.expert < 0:
            self._source.copy_into(place.name, out)
        else:
            out.copy_(self._stacked(place.name, out.dtype)[place.expert, place.rows])

    def quantized(self, name: str) -> QuantizedWeight | None:
        place = self._places[name]
        return self._source.quantized(place.name) if place.expert < 0 else None

    def digest(self) -> str:
        return self._source.digest()

    def _stacked(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Kept until another one is asked for: its experts are asked for in turn."""
        if self._stack is None or self._stack[0] != name or self._stack[1].dtype != dtype:
            self._stack = None
            whole = torch.empty(tuple(self._source.shapes()[name]), dtype=dtype)
            self._source.copy_into(name, whole)
            self._stack = (name, whole)
        return self._stack[1]


def _matrices(where: str, stored: str, shape: Shape) -> Iterator[tuple[str, Shape, _Place]]:
    """What a stored parameter holds: (name, shape, place) each."""
    name = stored.replace(".block_sparse_moe.", ".mlp.")
    if match := _MIXTRAL_NAME.fullmatch(name):
        yield f"{match[1]}.{_MIXTRAL[match[2]]}{match[3]}", shape, _Place(stored)
        return
    match = _STACKED.fullmatch(name)
    if not match:
        yield name, shape, _Place(stored)
        return
    if len(shape) != 3 or (match[2] == "gate_up_proj" and shape[1] % 2):
        raise InvalidArgument(f"{where}: {stored} of shape {list(shape)} cannot hold stacked experts")
    experts, rows, columns = shape
    parts = {"down_proj": slice(0, rows)}
    if match[2] == "gate_up_proj":
        parts = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
    for expert in range(experts):
        for part, where_in in parts.items():
            size = where_in.stop - where_in.start
            yield f"{match[1]}.{expert}.{part}.weight", (size, columns), _Place(stored, expert, where_in)
