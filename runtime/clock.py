"""Time as an argument: the clock that a process hands to its pure machines.

Durations come from one process's monotonic clock only; the wall clock is for people who read logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic_s: Clock = time.monotonic
"""Seconds since some fixed instant of this process's host; never goes back, is not comparable elsewhere."""

wall_s: Clock = time.time
"""Seconds since 1970; may jump."""


class ManualClock:
    """A clock that moves when told to, for tests and simulations."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        """Move forward; returns the new time."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self.now_s += seconds
        return self.now_s
