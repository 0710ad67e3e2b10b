"""Shared prefixes: whatever is shared, the result is that of rows by themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.attention import SharedPrefix
from tests.kernels.interpreted.scene import Scene

# All share 12 tokens. Of the first two, one is wholly shared: its own token lies in the shared part.
ROWS = [(23, 1), (24, 1), (19, 5), (12, 3), (40, 1)]
EVERYONE = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    "shared",
    [
        [],
        [SharedPrefix(EVERYONE, 0, 0)],
        [SharedPrefix(EVERYONE, 0, 1)],
        [SharedPrefix(EVERYONE, 0, 3)],
        [SharedPrefix((0, 1, 2), 0, 6)],  # nothing of row 0's own is left
        [SharedPrefix(EVERYONE, 0, 3), SharedPrefix((0, 1, 2), 3, 5), SharedPrefix((0, 1), 5, 6)],
        [SharedPrefix((0, 1), 0, 4), SharedPrefix((2, 4), 0, 5)],
        [SharedPrefix((1, 3), 1, 3)],  # not from the start: keys of the row's own on both sides
        [SharedPrefix((3,), 0, 3)],
    ],
    ids=["none", "no-block", "one-block", "all", "whole-row", "levels", "two", "middle", "lone"],
)
def test_shared_prefixes(shared: list[SharedPrefix]) -> None:
    Scene(ROWS, (3, 1), shared=shared).check()


@pytest.mark.parametrize(("window", "blocks"), [(1, 5), (8, 1), (8, 3), (8, 5), (13, 2)])
def test_windows_fall_where_they_would_without_sharing(window: int, blocks: int) -> None:
    rows = [(20, 1), (29, 1), (20, 9), (33, 1)]
    Scene(rows, (3, 1), shared=[SharedPrefix((0, 1, 2, 3), 0, blocks)]).check(window, 5.0)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised(kv_dtype: torch.dtype) -> None:
    shared = [SharedPrefix(EVERYONE, 0, 3), SharedPrefix((0, 1), 3, 6)]
    Scene(ROWS, shared=shared, kv_dtype=kv_dtype).check()


def test_rows_that_fill_tiles_by_themselves_stay_out_of_groups() -> None:
    Scene([(16, 1), (16, 20), (18, 1)], shared=[SharedPrefix((0, 1, 2), 0, 4)]).check()


def test_a_block_that_is_shared_twice_is_refused() -> None:
    shared = [SharedPrefix((0, 1), 0, 3), SharedPrefix((0, 1), 2, 4)]
    with pytest.raises(ValueError, match="both hold position 8"):
        Scene([(20, 1), (20, 1)], shared=shared).check()


@given(data=st.data(), prefix=st.integers(0, 24), block_size=st.integers(1, 5))
@settings(max_examples=10)
def test_any_batch(data: st.DataObject, prefix: int, block_size: int) -> None:
    suffixes = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=2, max_size=4))
    blocks = prefix // block_size
    start = blocks * block_size
    rows = [(start + own, length) for own, length in suffixes]
    everyone = tuple(range(len(rows)))
    Scene(rows, (3, 1), 8, block_size, shared=[SharedPrefix(everyone, 0, blocks)]).check()
