"""Tile sizes by how many rows a product has. A table, so that serving never waits for a search.

Few rows wait for the weight: many loads in flight count. Outputs come in 64s, the least that sm_90's
asynchronous products take, whatever the number of rows, so that all of them sum in one order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.kernels.triton_support.device import Gpu


@dataclass(frozen=True, slots=True)
class Tile:
    outputs: int
    rows: int
    warps: int
    stages: int


# In ascending order of rows. The first has 64 outputs instead where 128 would leave multiprocessors idle.
_TILES = (Tile(128, 8, 4, 4), Tile(64, 32, 4, 4), Tile(64, 64, 4, 4), Tile(128, 128, 8, 3))
# Words of codes leave sm_80, which unpacks them beside the sums, no registers for more.
_WORDS_80 = (*_TILES[:3], Tile(128, 64, 8, 3))
# Exact fp32 products, without tensor cores: for checks, not for speed.
_EXACT = (Tile(32, 16, 4, 1), Tile(64, 32, 4, 1))
# The interpreter pays by operation, whatever its size.
_INTERPRETED = (Tile(128, 8, 1, 1), Tile(128, 32, 1, 1))


def tile_for(rows: int, outputs: int, gpu: Gpu, *, words: bool, exact: bool) -> Tile:
    """The smallest tile that takes the rows, or the largest. words, exact: how weights are stored, and that
    the products are of fp32."""
    choices = _choices(gpu, words=words, exact=exact)
    tile = next((tile for tile in choices if tile.rows >= rows), choices[-1])
    narrow = tile is _TILES[0] and outputs < tile.outputs * gpu.sms
    return replace(tile, outputs=64) if narrow else tile


def _choices(gpu: Gpu, *, words: bool, exact: bool) -> tuple[Tile, ...]:
    if gpu.arch == 0:
        return _INTERPRETED
    if exact:
        return _EXACT
    return _WORDS_80 if words and gpu.arch < 90 else _TILES
