"""Which KV blocks several rows of a step have in common, as a tree: read once per group, not once per row.

    rows 0..3 ── blocks [0, 40) ──┬─ rows 0, 1 ── blocks [40, 52) ── each its own rest
                                  └─ rows 2, 3 ── blocks [40, 44) ── each its own rest

Attention over a set of keys can be cut into parts whose results are merged exactly (cascade inference), so
each edge of the tree is one part for all its rows. Only whole blocks that end before the first query of every
member are shared, hence no causal mask is needed inside a part; what a layer's window hides of it, the kernel
decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from baton.core.batch import Row, SharedPrefix


@dataclass(frozen=True, slots=True)
class CascadeCost:
    """What a shared part saves and costs in one layer, all of it in bytes moved.

    block_bytes: KV of one block. level_bytes: what could be read in the time that one more part costs.
    merge_bytes: a query's partial result, written, read and merged (0 where a kernel carries it along).
    most_tokens: a row of more has so many queries that its reads do not count beside its arithmetic.
    """

    block_bytes: int
    level_bytes: int = 0
    merge_bytes: int = 0
    most_tokens: int = 16


def shared_prefixes(rows: Sequence[Row], block_size: int, cost: CascadeCost) -> tuple[SharedPrefix, ...]:
    """The parts that pay, each before those that continue it. A row's parts follow one another from block 0.

    An edge that does not pay is read by its rows as part of what follows it. Takes time proportional to the
    compared blocks, at the speed of comparing memory, and next to none where all rows begin differently.
    """
    # Position `start` is the first query's own: the block it lies in is not shared.
    limits = [row.start // block_size if 0 < row.length <= cost.most_tokens else 0 for row in rows]
    members = [i for i, limit in enumerate(limits) if limit]
    if len({rows[i].block_table[0] for i in members}) == len(members):
        return ()
    tables = [_as_array(row.block_table) for row in rows]
    edges = _edges(tables, limits, members)
    return tuple(_chosen(edges, [row.length for row in rows], cost))


def _as_array(table: Sequence[int]) -> array[int]:
    return table if isinstance(table, array) else array("q", table)


@dataclass(slots=True)
class _Edge:
    """Blocks [start, end) of `spine` and of `others[first:]`. parent: index of the edge before it, or -1."""

    spine: int
    others: list[int]
    first: int
    start: int
    end: int
    parent: int

    @property
    def rows(self) -> list[int]:
        return [self.spine, *self.others[self.first :]]

    @property
    def saved(self) -> int:
        """Rows that need not read it."""
        return len(self.others) - self.first


def _edges(tables: list[array[int]], limits: list[int], members: Iterable[int]) -> list[_Edge]:
    """All edges with two rows or more, parents first. Row i's first limits[i] blocks count."""
    edges: list[_Edge] = []
    open_groups = [(group, 0, -1) for group in _by_block(tables, members, 0)]
    while open_groups:
        group, start, parent = open_groups.pop()
        # One row of the group is compared with all others. The middle one: a group that its members leave one
        # by one is then halved each time.
        spine = group.pop(len(group) // 2)
        end, ends = start + 1, {}
        for row in group:
            end = _common(tables[spine], tables[row], (start + 1, min(limits[spine], limits[row])), end)
            ends[row] = end
        others = sorted(ends, key=ends.__getitem__)
        first = 0
        while first < len(others):
            end = ends[others[first]]
            edges.append(_Edge(spine, others, first, start, end, parent))
            parent = len(edges) - 1
            after = first
            while after < len(others) and ends[others[after]] == end:
                after += 1
            leaving = [row for row in others[first:after] if limits[row] > end]
            open_groups += [(part, end, parent) for part in _by_block(tables, leaving, end)]
            first, start = after, end
    return edges


def _by_block(tables: list[array[int]], members: Iterable[int], index: int) -> Iterator[list[int]]:
    """Members that have the same block there, two or more."""
    groups: dict[int, list[int]] = {}
    for row in members:
        groups.setdefault(tables[row][index], []).append(row)
    return (group for group in groups.values() if len(group) > 1)


def _common(a: array[int], b: array[int], span: tuple[int, int], guess: int) -> int:
    """How far a and b are equal: at least to span[0], at most to span[1]. guess: where that may well be.

    Slices are compared, which runs in C: those near the start first, twice as long each time, then halving.
    """
    start, end = span
    if start < guess <= end and a[start:guess] == b[start:guess]:
        start = guess
    step = 1
    while start + step < end and a[start : start + step] == b[start : start + step]:
        start, step = start + step, 2 * step
    end = min(end, start + step)
    while start < end:
        middle = (start + end + 1) // 2
        if a[start:middle] == b[start:middle]:
            start = middle
        else:
            end = middle - 1
    return start


def _chosen(edges: list[_Edge], queries: list[int], cost: CascadeCost) -> Iterator[SharedPrefix]:
    """Each edge either becomes a part, or is left to its children, which then begin where it began."""
    later = [0] * len(edges)  # rows saved by an edge's children
    for edge in edges:
        if edge.parent >= 0:
            later[edge.parent] += edge.saved
    starts = [0] * len(edges)
    chosen = [False] * len(edges)
    for i, edge in enumerate(edges):
        if edge.parent >= 0:
            starts[i] = edges[edge.parent].end if chosen[edge.parent] else starts[edge.parent]
        blocks = edge.end - starts[i]
        # Compared with leaving it to the children. So where it is chosen, no choice below could do better.
        chosen[i] = (edge.saved - later[i]) * blocks * cost.block_bytes > _price(edge, queries, cost)
    _prefer_one_to_less(edges, starts, chosen, [_price(edge, queries, cost) for edge in edges], cost)
    for i, edge in enumerate(edges):
        if chosen[i]:
            yield SharedPrefix(tuple(sorted(edge.rows)), starts[i], edge.end)


def _price(edge: _Edge, queries: list[int], cost: CascadeCost) -> int:
    if not cost.merge_bytes:
        return cost.level_bytes
    return cost.level_bytes + cost.merge_bytes * sum(queries[row] for row in edge.rows)


def _prefer_one_to_less(
    edges: list[_Edge], starts: list[int], chosen: list[bool], prices: list[int], cost: CascadeCost
) -> None:
    """Take an edge after all where what was chosen in its place, below it, saves less."""
    gains = [0] * len(edges)
    taken: set[int] = set()
    for i in reversed(range(len(edges))):
        edge = edges[i]
        own = edge.saved * (edge.end - starts[i]) * cost.block_bytes - prices[i]
        if chosen[i]:
            gains[i] += own
        elif own > gains[i]:
            gains[i] = own
            taken.add(i)
        if edge.parent >= 0:
            gains[edge.parent] += gains[i]
    covered = [False] * len(edges)
    for i, edge in enumerate(edges):
        covered[i] = edge.parent >= 0 and (covered[edge.parent] or edge.parent in taken)
        chosen[i] = not covered[i] and (chosen[i] or i in taken)
