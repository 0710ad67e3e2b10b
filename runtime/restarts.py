"""When a child that died is started again, and when that is given up. Pure: times are arguments."""

from __future__ import annotations

from collections import deque

from baton.runtime.config import SuperviseConfig

MAX_BACKOFF_S = 30.0


class RestartPolicy:
    """One child's deaths."""

    def __init__(self, config: SuperviseConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque()

    def died(self, now_s: float) -> float | None:
        """Seconds to wait before the next start, or None: no more, stop the deployment."""
        if not self._config.restart:
            return None
        while self._deaths and self._deaths[0] <= now_s - self._config.window_s:
            self._deaths.popleft()
        self._deaths.append(now_s)
        if len(self._deaths) > self._config.max_restarts:
            return None
        return float(min(MAX_BACKOFF_S, self._config.backoff_s * 2.0 ** (len(self._deaths) - 1)))
