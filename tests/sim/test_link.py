"""What a simulated target lets land: each token of a grant once, in whatever order."""

from __future__ import annotations

import pytest

from baton.kv_transfer.writes import Write
from baton.sim.link import Grant

BLOCKS = (7, 3, 9)  # of four tokens each, from token 4 on


def write(start: int, end: int, blocks: tuple[int, ...], first: int) -> Write:
    return Write(1, 1, start, end, blocks, first, blocks, first)


def grant() -> Grant:
    return Grant(4, BLOCKS, 4)


def test_writes_may_overtake_each_other() -> None:
    one = grant()
    one.land(write(8, 14, (3, 9), 8))
    one.land(write(4, 8, (7,), 4))
    assert one.tokens == 14


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (write(8, 12, (3,), 8), "twice"),
        (write(9, 10, (3,), 8), "twice"),
        (write(6, 9, (7, 3), 4), "twice"),
        (write(12, 16, (8,), 12), "not granted"),
        (write(12, 20, (9, 2), 12), "not granted"),
        (write(0, 4, (7,), 0), "not granted"),
        (write(4, 9, (7,), 4), "beyond"),
    ],
)
def test_what_came_or_was_not_granted_does_not_land(wrong: Write, why: str) -> None:
    one = grant()
    one.land(write(8, 12, (3,), 8))
    with pytest.raises(AssertionError, match=why):
        one.land(wrong)
    assert one.tokens == 8
