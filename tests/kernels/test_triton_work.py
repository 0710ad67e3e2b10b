"""How a step's attention is cut into items: everything covered once, in pieces of about equal size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.attention import RowSpan, SharedPrefix, make_plan
from baton.kernels.attention.plan import AttentionPlan
from baton.kernels.attention.triton_work import Cutting, Work, cut, expand

BLOCK = 16


def plan_of(rows: list[tuple[int, int]], shared: list[SharedPrefix] = []) -> AttentionPlan:  # noqa: B006
    """Of each row's block table, the numbers say whose they are: 1000 * row + index."""
    spans = [
        RowSpan(start, length, [1000 * row + at for at in range((start + length) // BLOCK + 1)])
        for row, (start, length) in enumerate(rows)
    ]
    return make_plan(spans, BLOCK, shared=shared)


def cutting(**changes: object) -> Cutting:
    usual = {"group": 4, "kv_heads": 8, "sms": 132, "window": None, "tile_rows": (16, 64, 128)}
    return Cutting(**{**usual, **changes})  # type: ignore[arg-type]


def seen(plan: AttentionPlan, work: Work, group: int, window: int | None) -> dict[tuple[int, int], list[int]]:
    """For each (token, head of the group): the positions that items make it see, with repetitions."""
    found: dict[tuple[int, int], list[int]] = {}
    positions = plan.positions.numpy()
    rows = np.repeat(np.arange(len(plan.spans)), plan.lengths)
    for items in work.items:
        for begin, row_begin, row_end, table, key_begin, key_end, part, _ in items.tolist():
            assert key_begin < key_end
            for row in range(row_begin, row_end):
                token = int(work.query_tokens[begin + row // group])
                position = int(positions[token])
                first = 0 if window is None else max(0, position - window + 1)
                keys = range(max(key_begin, first), min(key_end, position + 1))
                found.setdefault((token, row % group), []).extend(keys)
                owner = np.searchsorted(plan.table_starts, table, side="right") - 1
                assert owner == rows[token] or part >= 0
    return found


ROWS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 60)), max_size=5)


@given(
    rows=ROWS,
    group=st.sampled_from([1, 3, 4, 24, 200]),
    window=st.none() | st.integers(1, 300),
    shared_blocks=st.lists(st.integers(0, 6), max_size=2),
    sms=st.sampled_from([1, 8, 132]),
)
@settings(max_examples=50)
def test_every_key_is_seen_once(
    rows: list[tuple[int, int]], group: int, window: int | None, shared_blocks: list[int], sms: int
) -> None:
    begin, shared = 0, []
    for blocks in shared_blocks:
        members = tuple(
            row for row, (start, length) in enumerate(rows) if start + length >= (begin + blocks) * BLOCK
        )
        shared.append(SharedPrefix(members, begin, begin + blocks))
        begin += blocks
    plan = plan_of(rows, shared)
    how = cutting(group=group, window=window, sms=sms, kv_heads=1)
    work = cut(plan, how)
    found = seen(plan, work, group, window)
    assert set(found) == {(token, head) for token in range(plan.tokens) for head in range(group)}
    for (token, _), keys in found.items():
        position = int(plan.positions[token])
        first = 0 if window is None else max(0, position - window + 1)
        assert sorted(keys) == list(range(first, position + 1))
    check_parts(work, group)


def check_parts(work: Work, group: int) -> None:
    """A token's result is written at once, or all its parts are merged; no two items write the same part."""
    written: dict[int, int] = {}
    direct, parts = set(), set()
    for items in work.items:
        for begin, row_begin, row_end, _, _, _, part, _ in items.tolist():
            for row in range(row_begin, row_end):
                token = int(work.query_tokens[begin + row // group])
                if part < 0:
                    assert (token, row % group) not in direct
                    direct.add((token, row % group))
                else:
                    assert (part + row // group, row % group) not in parts
                    parts.add((part + row // group, row % group))
                    assert written.setdefault(part + row // group, token) == token
    merged = {
        int(row): token for token, begin, end in work.merges.tolist() for row in work.partial_rows[begin:end]
    }
    assert merged == written
    assert not {token for token, _ in direct} & set(written.values())
    assert work.partials == len(written)


def programs(work: Work, kv_heads: int = 8) -> int:
    return sum(map(len, work.items)) * kv_heads


def test_one_long_row_is_split_to_fill_the_device() -> None:
    work = cut(plan_of([(32_767, 1)]), cutting())
    assert 200 <= programs(work) <= 2 * 132
    lengths = work.items[0][:, 5] - work.items[0][:, 4]
    assert set(lengths[:-1]) == {lengths[0]}
    assert lengths[0] % 128 == 0


def test_a_batch_that_fills_the_device_is_not_split() -> None:
    work = cut(plan_of([(2_000, 1)] * 64), cutting())
    assert programs(work) == 64 * 8
    assert work.partials == 0
    assert (work.items[0][:, 6] == -1).all()


def test_a_long_row_among_short_ones_is_split_and_they_are_not() -> None:
    work = cut(plan_of([(500, 1)] * 40 + [(60_000, 1)]), cutting())
    items = work.items[0]
    assert (items[:, 6] == -1).sum() == 40
    assert len(items) > 60
    keys = items[:, 5] - items[:, 4]
    assert keys.max() < 3_000
    assert (np.diff(keys) <= 0).all(), "the longest first"


def test_short_rows_are_not_split_whatever_the_device() -> None:
    assert cut(plan_of([(300, 1)]), cutting(sms=1000)).partials == 0


@pytest.mark.parametrize(
    ("length", "group", "tile"), [(1, 4, 0), (4, 4, 0), (5, 4, 1), (1, 24, 1), (16, 4, 1), (17, 4, 2)]
)
def test_tiles_are_as_tall_as_rows_need(length: int, group: int, tile: int) -> None:
    work = cut(plan_of([(100, length)]), cutting(group=group))
    assert [len(items) > 0 for items in work.items] == [tile == of for of in range(3)]


def test_a_shared_prefix_is_read_once_for_all_queries() -> None:
    rows = [(2_048 + 63, 1)] * 32
    work = cut(plan_of(rows, [SharedPrefix(tuple(range(32)), 0, 128)]), cutting(kv_heads=1, sms=1))
    assert [len(items) for items in work.items] == [32, 0, 1]
    assert (work.items[2][:, 4:6] == [0, 2_048]).all()
    assert (work.items[0][:, 4] == 2_048).all()


def test_expand() -> None:
    owner, ordinal = expand(np.array([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert ordinal.tolist() == [0, 1, 0, 1, 2]
