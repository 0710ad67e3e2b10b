"""How long a test waits for what must come: by a clock that stands still while the test itself does."""

from __future__ import annotations

import time

TURN_S = 0.1


class Patience:
    """`within_s` of waiting, in turns. A turn counts for TURN_S at most: on a busy machine one may take far
    longer, and what is waited for had no more of the processor meanwhile than the test."""

    def __init__(self, within_s: float) -> None:
        self._left_s = within_s
        self._since_s = time.monotonic()

    def lasts(self) -> bool:
        """Asked once in a turn: whether there may be another."""
        now_s = time.monotonic()
        self._left_s -= min(now_s - self._since_s, TURN_S)
        self._since_s = now_s
        return self._left_s > 0
