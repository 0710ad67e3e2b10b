"""Times of which some may be never."""

from __future__ import annotations


def earliest(*times: float | None) -> float | None:
    """None: never."""
    known = [when for when in times if when is not None]
    return min(known) if known else None
