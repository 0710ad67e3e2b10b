"""Times of which some may be never."""

from __future__ import annotations

from baton.core.times import earliest


def test_the_earliest_of_those_that_come() -> None:
    assert earliest(3.0, None, 0.0, 2.0) == 0.0
    assert earliest(None, 5.0) == 5.0
    assert earliest(None, None) is None
    assert earliest() is None
