"""What a step's attention is cut into: a list of items for programs to work off. Host side, numpy only.

Queries come in lists: the tokens of one row, or those of all rows that share a prefix. A list attends to a
range of keys of one block table. It is cut into units of whole tokens, as many as fit a tile of query heads
(a token with more heads than a tile has rows takes several); a unit's keys into pieces, where that keeps more
multiprocessors busy. Every (unit, piece) leaves a partial result per token, merged afterwards, except where a
token has only one: that is written at once.

Pieces (Flash-Decoding) have about equal numbers of keys, so a long row among short ones does not decide how
long the step takes (as in FlashInfer's scheduler, arXiv:2501.01005, section 3.3.1): the aim is what each of
`slots` programs would do if the work were spread evenly, but never so little that merging outweighs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from baton.kernels.attention.plan import AttentionPlan

Ints = np.ndarray  # int64 on this side, int32 on the device
Group = tuple[list[int], int, int]  # rows, and the keys [begin, end) that they share

# Programs per multiprocessor that the work is spread over.
_PROGRAMS_PER_SM = 2
# Tiles of more rows leave so many partial results that their pieces must be longer to be worth it.
_MERGES_WELL = 64


@dataclass(frozen=True, slots=True)
class Cutting:
    """How to cut. group: query heads per KV head. tile_rows: ascending. least_keys: about the fewest keys of
    a piece. align: pieces are multiples of it, so that tiles of keys are full."""

    group: int
    kv_heads: int
    sms: int
    window: int | None
    tile_rows: tuple[int, ...]
    least_keys: int = 256
    align: int = 128


@dataclass(frozen=True, slots=True)
class Work:
    """items: for each of tile_rows, [programs, 8] as `triton_kernel` reads them, most keys first.

    query_tokens: the lists, one after the other. merges: [merged tokens, 3]: token, and where its partial
    results begin and end in partial_rows. partials: how many rows of partial results there are.
    """

    items: tuple[Ints, ...]
    query_tokens: Ints
    merges: Ints
    partial_rows: Ints
    partials: int


def cut(plan: AttentionPlan, cutting: Cutting) -> Work:
    query_tokens, lists = _lists(plan, cutting)
    units = _units(lists, cutting)
    piece = _pieces(units, cutting)
    part, merges, partial_rows = _partials(units, piece, query_tokens)
    items = _items(units, piece, part, cutting)
    return Work(items, query_tokens, merges, partial_rows, len(partial_rows))


@dataclass(frozen=True, slots=True)
class _Lists:
    """All [lists]. begin, count: of query tokens. table: where its block ids begin. Positions run up from
    first_position (a row's tokens) or are anything up to last_position (mixed)."""

    begin: Ints
    count: Ints
    table: Ints
    key_begin: Ints
    key_end: Ints
    first_position: Ints
    last_position: Ints
    mixed: Ints


def _lists(plan: AttentionPlan, cutting: Cutting) -> tuple[Ints, _Lists]:
    """The lists' tokens, and the lists: a row's for every range of keys that it shares with nobody, then
    those of the shared prefixes."""
    starts, lengths, contexts = plan.starts, plan.lengths, plan.starts + plan.lengths
    groups = list(_worthwhile(plan, cutting))
    row, key_begin, key_end = _own_keys(lengths, contexts, groups)
    columns = [
        plan.first_tokens[row],
        lengths[row],
        plan.table_starts[row],
        key_begin,
        key_end,
        starts[row],
        contexts[row] - 1,
        np.zeros_like(row),
    ]
    query_tokens = [np.arange(plan.tokens)]
    shared, begin = [], plan.tokens
    for members, first, end in groups:
        tokens = np.concatenate([plan.first_tokens[m] + np.arange(lengths[m]) for m in members])
        query_tokens.append(tokens)
        positions = starts[members].min(), contexts[members].max() - 1
        shared.append((begin, len(tokens), plan.table_starts[members[0]], first, end, *positions, 1))
        begin += len(tokens)
    if shared:
        columns = [np.concatenate(both) for both in zip(columns, np.array(shared).T, strict=True)]
    return np.concatenate(query_tokens), _Lists(*columns)


def _worthwhile(plan: AttentionPlan, cutting: Cutting) -> Iterator[Group]:
    """Of at least two rows each, none of which fills tiles by itself."""
    for group in plan.shared:
        packed = [(row, int(plan.lengths[row]) * cutting.group) for row in group.rows]
        members = [row for row, height in packed if 0 < height < cutting.tile_rows[-1]]
        if len(members) > 1 and group.end_block > group.start_block:
            yield members, group.start_block * plan.block_size, group.end_block * plan.block_size


def _own_keys(lengths: Ints, contexts: Ints, groups: list[Group]) -> tuple[Ints, Ints, Ints]:
    """Rows, and ranges of their keys that no group holds."""
    rows = np.flatnonzero(lengths)
    if not groups:
        return rows, np.zeros_like(rows), contexts[rows]
    covered: dict[int, list[tuple[int, int]]] = {}
    for members, begin, end in groups:
        for row in members:
            covered.setdefault(row, []).append((begin, end))
    own = [
        (row, begin, end)
        for row in rows.tolist()
        for begin, end in _gaps(covered.get(row, []), int(contexts[row]))
    ]
    columns = np.array(own, dtype=np.int64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def _gaps(covered: list[tuple[int, int]], context: int) -> Iterator[tuple[int, int]]:
    """What of [0, context) is not covered. ValueError: something is covered twice, and would count twice."""
    begin = 0
    for first, end in sorted(covered):
        if first < begin:
            raise ValueError(f"two shared prefixes of a row both hold position {first}")
        if first > begin:
            yield begin, first
        begin = end
    if begin < context:
        yield begin, context


@dataclass(frozen=True, slots=True)
class _Units:
    """All [units]. begin, count: of query tokens; height: of its tiles, as an index into tile_rows; tiles:
    how many of them it takes."""

    begin: Ints
    count: Ints
    table: Ints
    key_begin: Ints
    key_end: Ints
    height: Ints
    tiles: Ints

    def select(self, which: Ints) -> _Units:
        return _Units(*(getattr(self, field)[which] for field in self.__slots__))


def _units(lists: _Lists, cutting: Cutting) -> _Units:
    """Those that have keys to attend to."""
    tile_rows = np.array(cutting.tile_rows)
    height = np.minimum(np.searchsorted(tile_rows, lists.count * cutting.group), len(tile_rows) - 1)
    tokens = np.maximum(1, tile_rows[height] // cutting.group)
    of, ordinal = expand(-(-lists.count // tokens))
    first = ordinal * tokens[of]
    count = np.minimum(tokens[of], lists.count[of] - first)
    mixed = lists.mixed[of] == 1
    lowest = lists.first_position[of] + np.where(mixed, 0, first)
    highest = np.where(mixed, lists.last_position[of], lowest + count - 1)
    key_begin = lists.key_begin[of]
    if cutting.window is not None:
        key_begin = np.maximum(key_begin, lowest - cutting.window + 1)
    key_end = np.minimum(lists.key_end[of], highest + 1)
    tiles = -(-count * cutting.group // tile_rows[height[of]])
    units = _Units(lists.begin[of] + first, count, lists.table[of], key_begin, key_end, height[of], tiles)
    return units.select(np.flatnonzero(key_end > key_begin))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """All [pieces], in the order of the units. alone: [units] whether a unit has one piece only."""

    unit: Ints
    key_begin: Ints
    key_end: Ints
    alone: Ints


def _pieces(units: _Units, cutting: Cutting) -> _Pieces:
    keys = units.key_end - units.key_begin
    slots = cutting.sms * _PROGRAMS_PER_SM
    aim = int((keys * units.tiles).sum()) * cutting.kv_heads / slots
    tall = np.array(cutting.tile_rows)[units.height] > _MERGES_WELL
    size = np.maximum(aim, np.where(tall, 2, 1) * cutting.least_keys)
    pieces = np.maximum(1, np.rint(keys / size)).astype(np.int64)
    size = -(-keys // (pieces * cutting.align)) * cutting.align
    of, ordinal = expand(-(-keys // size))
    begin = units.key_begin[of] + ordinal * size[of]
    return _Pieces(of, begin, np.minimum(begin + size[of], units.key_end[of]), keys <= size)


def _partials(units: _Units, pieces: _Pieces, query_tokens: Ints) -> tuple[Ints, Ints, Ints]:
    """[pieces] where each piece's partial results go, or -1; then `merges` and `partial_rows` of Work."""
    of, ordinal = expand(units.count)
    token = query_tokens[units.begin[of] + ordinal]
    results = np.bincount(token)  # units per token
    shared = np.zeros(len(units.count), dtype=bool)
    shared[of[results[token] > 1]] = True
    direct = (pieces.alone & ~shared)[pieces.unit]
    rows = np.where(direct, 0, units.count[pieces.unit])
    begins = np.cumsum(rows) - rows
    piece, ordinal = expand(rows)
    token = query_tokens[units.begin[pieces.unit[piece]] + ordinal]
    order = np.argsort(token, kind="stable")
    merged, counts = np.unique(token, return_counts=True)
    ends = np.cumsum(counts)
    return np.where(direct, -1, begins), np.stack([merged, ends - counts, ends], 1), order


def _items(units: _Units, pieces: _Pieces, part: Ints, cutting: Cutting) -> tuple[Ints, ...]:
    piece, tile = expand(units.tiles[pieces.unit])
    unit = pieces.unit[piece]
    height = units.height[unit]
    row_begin = tile * np.array(cutting.tile_rows)[height]
    row_end = np.minimum(row_begin + np.array(cutting.tile_rows)[height], units.count[unit] * cutting.group)
    keys = pieces.key_begin[piece], pieces.key_end[piece]
    spare = np.zeros_like(piece)
    fields = [units.begin[unit], row_begin, row_end, units.table[unit], *keys, part[piece], spare]
    items = np.stack(fields, 1)[np.argsort(keys[0] - keys[1], kind="stable")]
    height = height[np.argsort(keys[0] - keys[1], kind="stable")]
    return tuple(items[height == of] for of in range(len(cutting.tile_rows)))


def expand(counts: Ints) -> tuple[Ints, Ints]:
    """Of sum(counts) things: whose each is, and which of its owner's. [0, 0, 1], [0, 1, 0] for [2, 1]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
