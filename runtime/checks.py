"""Checks of what arrives from elsewhere: a number out of range becomes an error that names its field."""

from __future__ import annotations

import math
from collections.abc import Sequence

from baton.core.errors import InvalidArgument

MAX_U32 = 2**32 - 1
MAX_NAME = 256


def whole(field: str, value: int, low: int = 0, high: int = MAX_U32) -> int:
    """`value` if it lies in [low, high]."""
    if not low <= value <= high:
        raise InvalidArgument(f"must be in [{low}, {high}], got {value}", field=field)
    return value


def finite(field: str, value: float, low: float = 0.0) -> float:
    """`value` if it is a finite number of at least `low`."""
    if not math.isfinite(value) or value < low:
        raise InvalidArgument(f"must be a finite number of at least {low:g}, got {value}", field=field)
    return value


def text(field: str, value: str, *, most: int = MAX_NAME, least: int = 0) -> str:
    """`value` if its length in characters lies in [least, most]."""
    if not least <= len(value) <= most:
        raise InvalidArgument(f"must have {least} to {most} characters, got {len(value)}", field=field)
    return value


def printable(field: str, value: str, *, most: int = MAX_NAME, least: int = 0) -> str:
    """`value` if it is printable ASCII of a length in [least, most]: safe in logs, headers and file names."""
    text(field, value, most=most, least=least)
    if not (value.isascii() and (value.isprintable() or not value)):
        raise InvalidArgument("must be printable ASCII", field=field)
    return value


def count(field: str, values: Sequence[object], most: int) -> None:
    """Raise if there are more than `most` values."""
    if len(values) > most:
        raise InvalidArgument(f"at most {most} allowed, got {len(values)}", field=field)
