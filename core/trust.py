"""For how long measurements are believed once no new ones come."""

from __future__ import annotations

LEAST_S, MOST_S = 10.0, 60.0  # for which anything is believed; for which what has always been so is


class Trust:
    """What has held for t seconds is believed for as long again, within limits: a disturbance of a moment is
    soon forgotten, and what is found true each time it is doubted is doubted less and less often."""

    def __init__(self) -> None:
        self._since_s = self._seen_s = 0.0

    def begin(self, at_s: float) -> None:
        """What is believed from now on is something else."""
        self._since_s = at_s

    def seen(self, at_s: float) -> None:
        """A measurement."""
        self._seen_s = max(self._seen_s, at_s)

    def doubt(self, now: float) -> float:
        """0 just after a measurement, 1 when what was measured counts no more, and growing on."""
        life_s = min(max(self._seen_s - self._since_s, LEAST_S), MOST_S)
        return max(0.0, now - self._seen_s) / life_s
