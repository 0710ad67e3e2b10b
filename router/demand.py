"""What the cluster has been asked for lately, as the planner needs it: averages that fade."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Faded:
    """A sum that fades with time constant tau_s."""

    tau_s: float
    total: float = 0.0
    at_s: float = 0.0

    def add(self, value: float, now: float) -> None:
        self.total = self.read(now) + value
        self.at_s = now

    def read(self, now: float) -> float:
        return self.total * math.exp(-max(0.0, now - self.at_s) / self.tau_s)


class Demand:
    """Prompts: how many come, how many node-seconds each takes, how much these vary."""

    def __init__(self, tau_s: float) -> None:
        self._tau_s = tau_s
        self._count = Faded(tau_s)
        self._work = Faded(tau_s)
        self._square = Faded(tau_s)
        self._targets = Faded(tau_s)
        self._with_target = Faded(tau_s)
        self._began_s: float | None = None

    def arrived(self, work_s: float, ttft_s: float | None, now: float) -> None:
        if self._began_s is None:
            self._began_s = now
        self._count.add(1.0, now)
        self._work.add(work_s, now)
        self._square.add(work_s * work_s, now)
        if ttft_s is not None:
            self._targets.add(ttft_s, now)
            self._with_target.add(1.0, now)

    def nodes(self, now: float) -> float:
        """Node-seconds of prompts that come per second: so many nodes would be busy all the time."""
        if self._began_s is None:
            return 0.0
        seen_s = self._tau_s * (1.0 - math.exp(-(now - self._began_s) / self._tau_s))
        return self._work.read(now) / max(seen_s, 1.0)

    def mean_s(self, now: float) -> float:
        count = self._count.read(now)
        return self._work.read(now) / count if count > 0.0 else 0.0

    def variation(self, now: float) -> float:
        """Variance of the work of a prompt over its mean squared."""
        count, work = self._count.read(now), self._work.read(now)
        if count <= 0.0 or work <= 0.0:
            return 0.0
        return max(0.0, self._square.read(now) * count / work**2 - 1.0)

    def ttft_s(self, now: float) -> float | None:
        """The mean target of those that have one."""
        count = self._with_target.read(now)
        return self._targets.read(now) / count if count > 1e-3 else None
