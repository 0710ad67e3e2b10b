"""The published policies, ready for a simulated router, with what each asks of router and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from baton.router.machine_config import RouterConfig
from baton.router.policy import Chooser
from baton.sim.baselines.cache_aware import cache_aware
from baton.sim.baselines.dynamo import Dynamo
from baton.sim.baselines.least_load import least_load
from baton.sim.baselines.llm_d import llm_d
from baton.sim.baselines.mooncake import Mooncake
from baton.sim.baselines.simple import least_requests, power_of_two, random_choice, round_robin

WITHOUT_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Baseline:
    """make: a policy from a seed. rejects: it turns requests away. local: its decode nodes may prefill."""

    name: str
    make: Callable[[int], Chooser]
    rejects: bool = False
    local: bool = False

    def config(self) -> RouterConfig:
        """No queue at the router: who is not dispatched on arrival is turned away, and only a policy that
        rejects lets that happen while there are nodes."""
        return RouterConfig(
            max_queued=WITHOUT_LIMIT,
            max_queue_wait_s=-1.0 if self.rejects else math.inf,
            max_node_requests=WITHOUT_LIMIT,
            max_refusals=WITHOUT_LIMIT,
        )


BASELINES = (
    Baseline("random", random_choice),
    Baseline("round robin", round_robin),
    Baseline("least requests", least_requests),
    Baseline("power of two", power_of_two),
    Baseline("cache_aware", cache_aware),
    Baseline("least_load", least_load),
    Baseline("Dynamo", lambda seed: Dynamo(), local=True),
    Baseline("Mooncake", lambda seed: Mooncake(), rejects=True),
    Baseline("llm-d headroom", llm_d),
)


def baseline(name: str) -> Baseline:
    """Raises KeyError."""
    return {each.name: each for each in BASELINES}[name]
