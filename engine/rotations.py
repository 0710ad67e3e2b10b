"""Cosines and sines by position, made once."""

from __future__ import annotations

import torch

from baton.engine.rope import Rope
from baton.kernels.rope import Rotation, tables

# Positions beyond are computed as they come: of 128 dimensions, a table to here takes 32 MiB.
_KEPT = 32_768
_FIRST = 1024


class Rotations:
    """A token's rotation depends on its position alone (see `Rope.angles`): a step looks its tokens' up."""

    def __init__(self, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        self._rope = rope
        self._dtype = dtype
        self._device = device
        self._table = self._made(torch.arange(_FIRST))

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """positions: [tokens] int64 on the CPU."""
        last = int(positions.max()) if len(positions) else 0
        if last >= _KEPT:
            return self._made(positions)
        while last >= len(self._table.cos):
            self._table = self._made(torch.arange(2 * len(self._table.cos)))
        there = positions.to(self._device)
        return Rotation(*(table.index_select(0, there) for table in self._table))

    def _made(self, positions: torch.Tensor) -> Rotation:
        rotation = tables(self._rope.angles(positions), self._rope.scale, self._dtype)
        return Rotation(*(table.to(self._device) for table in rotation))
