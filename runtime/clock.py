"""Time as an argument: the clock that a process hands to its pure machines.

Durations come from one process's monotonic clock only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic_s: Clock = time.monotonic
"""Seconds since some fixed instant of this process's host; never goes back, is not comparable elsewhere."""
