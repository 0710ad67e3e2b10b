"""Enums whose members are keys of tables that are looked at all the time."""

from __future__ import annotations

from enum import Enum


class QuickEnum(Enum):
    """Members hash by identity, which is what they are compared by. Enum computes a hash of the name, in
    Python, at every look into a table."""

    __hash__ = object.__hash__
