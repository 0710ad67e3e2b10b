"""What `dataclasses.replace` does, for classes whose `__init__` takes every field; compiled with them."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def replace(one: T, /, **changes: Any) -> T:
    kind: Any = type(one)
    for name in kind.__match_args__:
        if name not in changes:
            changes[name] = getattr(one, name)
    made: T = kind(**changes)
    return made
