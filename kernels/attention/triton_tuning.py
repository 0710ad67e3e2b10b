"""Tile sizes by architecture and head_dim. A table, so that serving never waits for a search.

Tile rows are query heads of a GQA group times tokens. Three heights, by how many rows a list of queries has:

    16   decode: the least that a tensor core takes. Bound by memory, so what counts is loads in flight
    64   verification rows, short chunks and shared prefixes of small groups: read once, they still cost less
         time than their keys take to arrive
    128  prefill: enough arithmetic per key to be bound by the tensor cores (64 where 128 would not fit)

stages: the loop is a chain of block table, keys, product, and a tile of keys and values is 2 * keys *
head_dim * bytes. 3 stages hold one tile at a time (sm_90's asynchronous products: two), 5 and 7 two and
three. They have to leave room, in 163 KiB (sm_80) or 227 KiB (sm_90), for two decode programs per
multiprocessor.

keys: as many as fit the registers without spills, with keys and values of 16 bits or 8: an accumulator takes
rows * head_dim of the 64 Ki of a multiprocessor, so 128 rows need 8 warps, and 64 rows too where head_dim is
256. tests/kernels/test_triton_resources.py holds every entry to that.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.kernels.triton_support.device import Gpu


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    keys: int
    warps: int
    stages: int


# (arch, padded head_dim) -> the three tiles for 16-bit queries, in ascending order of rows.
_TILES: dict[tuple[int, int], tuple[Tile, Tile, Tile]] = {
    (80, 64): (Tile(16, 64, 4, 7), Tile(64, 64, 4, 5), Tile(128, 32, 8, 5)),
    (80, 128): (Tile(16, 64, 4, 5), Tile(64, 32, 4, 5), Tile(128, 32, 8, 5)),
    (80, 256): (Tile(16, 32, 4, 5), Tile(64, 16, 8, 5), Tile(64, 16, 8, 5)),
    (90, 64): (Tile(16, 128, 4, 7), Tile(64, 64, 4, 5), Tile(128, 64, 8, 5)),
    (90, 128): (Tile(16, 64, 4, 7), Tile(64, 32, 4, 5), Tile(128, 64, 8, 5)),
    (90, 256): (Tile(16, 32, 4, 7), Tile(64, 32, 8, 5), Tile(128, 32, 8, 3)),
}
# Where keys and values of 8 bits, which pass through registers to be converted, need other tiles than those.
_QUANTIZED = {(80, 128): (Tile(16, 64, 4, 5), Tile(64, 32, 4, 5), Tile(64, 32, 4, 5))}
# fp32 is for checks rather than for speed: three products each, keys and values of twice the size.
_EXACT = (Tile(16, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1))
# The interpreter pays by operation, whatever its size. Small, so that small tests have many tiles.
_INTERPRETED = (Tile(4, 16, 1, 1), Tile(16, 16, 1, 1), Tile(32, 16, 1, 1))


def tiles(gpu: Gpu, head_dim: int, query_bytes: int, *, quantized: bool) -> tuple[Tile, ...]:
    """In ascending order of rows. query_bytes: of an element. ValueError: head_dim above 256."""
    if not 0 < head_dim <= 256:
        raise ValueError(f"head_dim is {head_dim}, not within 1 to 256")
    if gpu.arch == 0:
        return _INTERPRETED
    if query_bytes > 2:
        return _EXACT
    key = 90 if gpu.arch >= 90 else 80, max(64, padded(head_dim))
    return _QUANTIZED.get(key, _TILES[key]) if quantized else _TILES[key]


def padded(head_dim: int) -> int:
    """What a tile is wide: a power of two, and no less than tensor cores multiply at once."""
    return max(16, 1 << (head_dim - 1).bit_length())
