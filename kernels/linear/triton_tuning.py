"""Tile sizes by how many rows a product has. A table, so that serving never waits for a search.

Few rows wait for the weight: many loads in flight count. Outputs come in 64s, the least that sm_90's
asynchronous products take, whatever the number of rows, so that all of them sum in one order.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.kernels.triton_support.device import Gpu


@dataclass(frozen=True, slots=True)
class Tile:
    outputs: int
    rows: int
    warps: int
    stages: int


# In ascending order of rows.
_TILES = (Tile(64, 16, 4, 5), Tile(64, 64, 4, 4), Tile(128, 128, 8, 3))
# Exact fp32 products, without tensor cores: for checks, not for speed.
_EXACT = (Tile(32, 16, 4, 1), Tile(64, 32, 4, 1))
# The interpreter pays by operation, whatever its size.
_INTERPRETED = (Tile(32, 8, 1, 1), Tile(64, 32, 1, 1))


def tile_for(rows: int, gpu: Gpu, *, exact: bool) -> Tile:
    """The smallest tile that takes the rows, or the largest."""
    choices = _INTERPRETED if gpu.arch == 0 else _EXACT if exact else _TILES
    return next((tile for tile in choices if tile.rows >= rows), choices[-1])
