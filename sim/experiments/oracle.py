"""Baton's policy with perfect knowledge: how long answers will be, and which requests can be served in time.

That set comes from the fluid bound (`bound`), for machines somewhat slower than they are, as real steps, real
batches and whole nodes reach a part of what the bound's one great machine does. How large a part depends on
the load, so an experiment tries several, and the policy's own judgement, and keeps the best.
"""

from __future__ import annotations

from dataclasses import replace

from baton.router.ask import Ask
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.policy import Blocked, Choice, Why
from baton.router.policy_latency import POLICIES
from baton.sim.experiments.bound import needs, served
from baton.sim.experiments.setting import Setting

EFFICIENCIES = (None, 0.9, 0.6)
"""What nodes reach of the bound's machine; None: nobody is refused for its sake."""


class Oracle:
    """rate: requests per second that will come."""

    def __init__(self, setting: Setting, rate: float, config: RouterConfig, efficiency: float | None) -> None:
        self._inner = POLICIES[config.policy](config)
        self._serve: list[bool] | None = None
        if efficiency is not None:
            found = needs(setting.arrivals, setting.profile, setting.slo)
            capacity = efficiency * setting.nodes
            self._serve = served(found, setting.rate / rate, capacity, setting.slo.ttft_s)

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        request = ask.request
        if self._serve is not None and not self._serve[int(request.id.removeprefix("r"))]:
            return Blocked(Why.TOO_LONG)  # refused at once, where others may wait
        left = request.max_tokens - len(request.output_ids)  # these clients ask for what they will get
        return self._inner.choose(replace(ask, expected_output_tokens=max(1.0, left)), registry)
