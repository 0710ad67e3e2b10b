"""The tree of shared prefixes as one order of rows: rows that share blocks are neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.core.batch import SharedPrefix

# A row of more tokens makes so many queries that it gains nothing from reading its keys with others.
MOST_TOKENS = 16


class Order(NamedTuple):
    """rows: a permutation of row indices. The row at index i of it has positions [starts[i], ends[i]) in the
    same blocks as the row at i - 1; empty where they share nothing. A whole tree of prefixes fits in this,
    since what three rows share, each pair of neighbours among them shares."""

    rows: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]


def order_rows(lengths: Sequence[int], block_size: int, shared: Sequence[SharedPrefix]) -> Order:
    """lengths: tokens of each row."""
    nothing = [0] * len(lengths)
    if not shared:
        return Order(range(len(lengths)), nothing, nothing)
    outer_first = sorted(shared, key=lambda prefix: (-len(prefix.rows), prefix.start_block))
    member_of: list[list[int]] = [[] for _ in lengths]
    for index, prefix in enumerate(outer_first):
        for row in prefix.rows:
            if lengths[row] <= MOST_TOKENS:
                member_of[row].append(index)
    rows = sorted(range(len(lengths)), key=lambda row: member_of[row])
    starts, ends = nothing[:], nothing[:]
    for i in range(1, len(rows)):
        both = set(member_of[rows[i - 1]]).intersection(member_of[rows[i]])
        spans = sorted((outer_first[j].start_block, outer_first[j].end_block) for j in both)
        begin, end = _longest(spans)
        starts[i], ends[i] = begin * block_size, end * block_size
    return Order(rows, starts, ends)


def _longest(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The longest run of blocks that these cover without a gap; spans are sorted."""
    best = run = (0, 0)
    for begin, end in spans:
        run = (run[0], max(run[1], end)) if run[0] < run[1] and begin <= run[1] else (begin, end)
        best = max(best, run, key=lambda span: span[1] - span[0])
    return best
