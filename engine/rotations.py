"""Cosines and sines by position, made once."""

from __future__ import annotations

import torch

from baton.engine.rope import Rope
from baton.kernels.rope import Rotation, tables

_FIRST = 1024


class Rotations:
    """A token's rotation depends on its position alone (see `Rope.angles`), so a step's are looked up."""

    def __init__(self, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        self._rope = rope
        self._dtype = dtype
        self._device = device
        self._table = self._made(_FIRST)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """positions: [tokens] int64 on the CPU."""
        there = positions.to(self._device)
        table = self.upto(int(positions.max()) + 1)
        return Rotation(*(part.index_select(0, there) for part in table))

    def upto(self, positions: int) -> Rotation:
        """Of at least the first so many positions."""
        size = len(self._table.cos)
        if positions > size:
            self._table = self._made(max(2 * size, 1 << (positions - 1).bit_length()))
        return self._table

    def _made(self, positions: int) -> Rotation:
        angles = self._rope.angles(torch.arange(positions))
        rotation = tables(angles, self._rope.scale, self._dtype)
        return Rotation(*(part.to(self._device) for part in rotation))
