"""Baton's policy with perfect knowledge: told which requests can be served in time, it takes only those.

The set comes from the fluid bound (`bound`), for machines a little slower than they are: `efficiency` is what
real steps, real batches and whole nodes reach of the bound's one great machine.
"""

from __future__ import annotations

from baton.router.ask import Ask
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.policy import Blocked, Choice
from baton.router.policy_latency import POLICIES
from baton.sim.baselines.separate import refused
from baton.sim.experiments.bound import needs, served
from baton.sim.experiments.setting import Setting

EFFICIENCY = 0.9


class Oracle:
    """rate: requests per second that will come."""

    def __init__(self, setting: Setting, rate: float, config: RouterConfig) -> None:
        self._inner = POLICIES[config.policy](config)
        found = needs(setting.arrivals, setting.profile, setting.slo)
        capacity = EFFICIENCY * setting.nodes
        self._serve = served(found, setting.rate / rate, capacity, setting.slo.ttft_s)

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        if not self._serve[int(ask.request.id.removeprefix("r"))]:
            return refused("it cannot be served in time")
        return self._inner.choose(ask, registry)
