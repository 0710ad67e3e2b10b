"""The tree of shared blocks against one found block by block, and the choice of parts against all choices."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.batch import Row, SharedPrefix
from baton.core.cascade import CascadeCost, shared_prefixes
from baton.core.request import SamplingParams

BLOCK = 4
FREE = CascadeCost(block_bytes=1)
Groups = list[tuple[tuple[int, ...], int, int]]


def row(table: Sequence[int], start: int, length: int = 1) -> Row:
    return Row(("r", 0), [7] * length, start, table, True, SamplingParams(), [], 1)


def decode(*tables: Sequence[int]) -> list[Row]:
    """Rows whose blocks are all full but the last."""
    return [row(table, BLOCK * len(table) - 1) for table in tables]


def found(rows: list[Row], cost: CascadeCost = FREE) -> Groups:
    return [(part.rows, part.start_block, part.end_block) for part in shared_prefixes(rows, BLOCK, cost)]


def block_by_block(rows: list[Row]) -> Groups:
    """Every maximal run of blocks that the same two rows or more share."""
    groups: Groups = []
    for index in range(max((len(row.block_table) for row in rows), default=0)):
        sharing: dict[tuple[int, ...], list[int]] = {}
        for i, one in enumerate(rows):
            if one.length and (index + 1) * BLOCK <= one.start:
                sharing.setdefault(tuple(one.block_table[: index + 1]), []).append(i)
        for members in sharing.values():
            if len(members) > 1:
                before = [g for g in groups if g[0] == tuple(members) and g[2] == index]
                for group in before:
                    groups.remove(group)
                groups.append((tuple(members), before[0][1] if before else index, index + 1))
    return groups


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Tables that branch often: each is a mutation of an earlier one."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 9))):
        parent = list(draw(st.sampled_from(rows)).block_table) if rows else []
        kept = parent[: draw(st.integers(0, len(parent)))]
        table = kept + draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
        length = draw(st.integers(0, 6))
        start = draw(st.integers(0, max(0, len(table) * BLOCK - length)))
        rows.append(row(table, start, length))
    return rows


@settings(max_examples=300, deadline=None, derandomize=True)
@given(batches())
def test_all_edges_of_the_tree_are_found_parents_first(rows: list[Row]) -> None:
    groups = found(rows)
    assert sorted(groups) == sorted(block_by_block(rows))
    check_order(groups, len(rows))


def check_order(groups: Groups, rows: int) -> None:
    """A row's parts follow one another from block 0, in the order given."""
    reached = [0] * rows
    for members, start, end in groups:
        assert start < end
        assert list(members) == sorted(set(members))
        for member in members:
            assert reached[member] == start
            reached[member] = end


def gain(groups: Groups, rows: list[Row], cost: CascadeCost) -> int:
    return sum(
        (len(members) - 1) * (end - start) * cost.block_bytes
        - cost.level_bytes
        - cost.merge_bytes * sum(rows[i].length for i in members)
        for members, start, end in groups
    )


def best_gain(rows: list[Row], cost: CascadeCost) -> int:
    """Over every way to take edges, or to leave their blocks to the edges after them."""
    edges = block_by_block(rows)

    def best(edge: tuple[tuple[int, ...], int, int], start: int) -> int:
        members, _, end = edge
        after = [e for e in edges if e[1] == end and set(e[0]) < set(members)]
        taken = gain([(members, start, end)], rows, cost) + sum(best(e, end) for e in after)
        return max(taken, sum(best(e, start) for e in after), 0)

    return sum(best(edge, 0) for edge in edges if edge[1] == 0)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(batches(), st.integers(0, 12), st.integers(0, 3), st.sampled_from([1, 3]))
def test_parts_that_do_not_pay_are_left_to_those_after_them(
    rows: list[Row], level: int, merge: int, block: int
) -> None:
    cost = CascadeCost(block, level, merge)
    groups = found(rows, cost)
    check_order(groups, len(rows))
    edges = block_by_block(rows)
    for members, start, end in groups:
        assert gain([(members, start, end)], rows, cost) > 0
        assert any(edge[0] == members and start <= edge[1] and edge[2] == end for edge in edges)
        assert len({tuple(rows[i].block_table[:end]) for i in members}) == 1
        assert all(end * BLOCK <= rows[i].start for i in members)
    assert 2 * gain(groups, rows, cost) >= best_gain(rows, cost), "nearly always they are equal"


def test_a_tree_of_three_levels() -> None:
    rows = decode([1, 2, 3, 4, 9], [1, 2, 3, 5, 8], [1, 2, 6, 7], [1, 2, 3, 4, 10], [20, 2, 3])
    assert found(rows) == [((0, 1, 2, 3), 0, 2), ((0, 1, 3), 2, 3), ((0, 3), 3, 4)]


def test_only_blocks_before_every_members_own_queries_are_shared() -> None:
    table = [1, 2, 3, 4]
    assert found([row(table, 8), row(table, 8)]) == [((0, 1), 0, 2)]
    assert found([row(table, 7), row(table, 15)]) == [((0, 1), 0, 1)]
    assert found([row(table, 3), row(table, 15)]) == []
    assert found([row(table, 0, 16), row(table, 15)]) == [], "a whole prompt has no block before its queries"
    assert found([row(table, 8, 5), row(table, 12, 4)]) == [((0, 1), 0, 2)], "chunks and verification rows"
    assert found([row(table, 15, 0), row(table, 15)]) == [], "a row without queries reads nothing"


def test_long_chunks_keep_to_themselves() -> None:
    rows = [row([1, 2, 3], 8, 4), row([1, 2, 3], 8, 5), row([1, 2, 4], 8, 4)]
    assert found(rows, CascadeCost(1, most_tokens=4)) == [((0, 2), 0, 2)]


def test_a_list_and_a_tuple_are_the_same_table() -> None:
    assert found([row([1, 2, 3], 11), row((1, 2, 4), 11)]) == [((0, 1), 0, 2)]


def test_equal_blocks_after_different_ones_are_not_a_prefix() -> None:
    assert found(decode([1, 5, 6, 9], [2, 5, 6, 8])) == []


def test_what_a_level_costs_decides() -> None:
    rows = decode([1, 2, 3, 4], [1, 2, 3, 5], [1, 6, 7])
    assert found(rows, CascadeCost(10, 8)) == [((0, 1, 2), 0, 1), ((0, 1), 1, 3)]
    assert found(rows, CascadeCost(10, 15)) == [((0, 1), 0, 3)], "one level of three blocks, not two levels"
    assert found(rows, CascadeCost(10, 30)) == []
    assert found(rows, CascadeCost(10, 1, 9)) == [((0, 1), 0, 3)], (
        "merging three queries costs more than it saves"
    )


def test_one_part_is_better_than_none() -> None:
    """Left to its two branches, neither of them pays."""
    rows = decode([1, 2, 3, 9], [1, 2, 3, 9], [1, 2, 4, 9], [1, 2, 4, 9])
    assert found(rows, CascadeCost(10, 31)) == [((0, 1, 2, 3), 0, 2)]


class Counted(array):  # type: ignore[type-arg]
    """A block table that counts what is copied out of it to be compared."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            Counted.copied += len(range(*index.indices(len(self))))
        return super().__getitem__(index)


def test_work_is_proportional_to_what_rows_share() -> None:
    """A thousand rows of five hundred blocks: each is looked at a few times, however the rows branch."""
    system = list(range(1, 481))
    one = [[*system, *range(1000 * i, 1000 * i + 20)] for i in range(1, 1001)]
    branching = [system[: i // 2] + [10**6 + i] * (501 - i // 2) for i in range(2, 960)]
    for tables, parts in ((one, 1), (branching, 479)):
        rows = [row(Counted("q", table), 500 * BLOCK - 1) for table in tables]
        Counted.copied = 0
        groups = shared_prefixes(rows, BLOCK, FREE)
        assert len(groups) == parts
        shared = sum((part.end_block - part.start_block) * len(part.rows) for part in groups)
        assert shared <= Counted.copied < 4 * shared
    assert groups[0] == SharedPrefix(tuple(range(len(branching))), 0, 1)
