"""Values: dataclasses that nobody changes, and that are made all the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """As `dataclass(frozen=True, slots=True)`, for messages, effects and rows: the type checker refuses to
    assign to a field. At run time nothing does, as that makes setting each field in `__init__` five times as
    slow."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
