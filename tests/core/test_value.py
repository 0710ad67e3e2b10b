"""What `value` keeps of a frozen dataclass, and what it leaves to the type checker."""

from __future__ import annotations

from dataclasses import replace

from baton.core.value import value


@value
class Point:
    x: int
    y: tuple[int, ...] = ()


def test_equal_fields_are_equal_keys() -> None:
    assert Point(1, (2,)) == Point(1, (2,)) != Point(1)
    assert {Point(1): "a"}[Point(1)] == "a"
    assert repr(replace(Point(1), x=3)) == "Point(x=3, y=())"


def test_it_takes_no_other_attributes() -> None:
    assert not hasattr(Point(1), "__dict__")
