"""Baton's policy, and the same without one of its parts: to see what each is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.router.ask import Ask
from baton.router.machine_config import RouterConfig
from baton.router.nodes import Registry
from baton.router.planner import PlannerConfig
from baton.router.policy import Blocked, Choice, Chooser
from baton.router.policy_latency import POLICIES
from baton.router.prefix_view import PromptChains
from baton.sim.spec import ClusterSpec

NO_PREFIX = PromptChains((), "")


class Forgetful:
    """A policy that is told of no cached prefix."""

    def __init__(self, inner: Chooser) -> None:
        self._inner = inner

    def choose(self, ask: Ask, registry: Registry) -> Choice | Blocked:
        return self._inner.choose(replace(ask, chains=NO_PREFIX, lenders=None), registry)


@dataclass(frozen=True, slots=True)
class Variant:
    """mixing: whether nodes may do both. policy: None: what the configuration names."""

    router: Callable[[RouterConfig], RouterConfig] = lambda config: config
    cluster: Callable[[ClusterSpec], ClusterSpec] = lambda cluster: cluster
    policy: Callable[[RouterConfig], Chooser | None] = lambda config: None
    mixing: bool = True


def _whole(config: RouterConfig) -> RouterConfig:
    """All of it: as an operator would set it who wants targets met."""
    return replace(config, planner=PlannerConfig(), admission="reject")


def _without_admission(config: RouterConfig) -> RouterConfig:
    """Nobody is turned away, nor held back for the sake of others or for being too late already."""
    return replace(_whole(config), admission="defer", miss_s=0.0, late_wait_s=0.0)


VARIANTS = {
    "Baton": Variant(_whole),
    "without slack order": Variant(
        lambda config: replace(_whole(config), order="fcfs"),
        cluster=lambda cluster: replace(cluster, fcfs=True, by_latency=True),
    ),
    "without admission": Variant(_without_admission),
    "without latency chunks": Variant(_whole, cluster=lambda cluster: replace(cluster, by_latency=False)),
    "without rejection": Variant(lambda config: replace(_whole(config), admission="defer")),
    "without mixing": Variant(_whole, mixing=False),
    "without planner": Variant(lambda config: replace(_whole(config), planner=None)),
    "without fetching": Variant(lambda config: replace(_whole(config), fetch=False)),
    "without prefix affinity": Variant(
        _whole, policy=lambda config: Forgetful(POLICIES[config.policy](config))
    ),
}
