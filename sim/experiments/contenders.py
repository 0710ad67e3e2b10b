"""Who is compared: the published policies, Baton's, Baton's without one of its parts, and one that knows all.

A contender is a value (it is sent to other processes) that makes a World of a setting, a split and a rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.router.machine_config import RouterConfig
from baton.router.policy import Chooser
from baton.sim.baselines.catalogue import BASELINES, WITHOUT_LIMIT, baseline
from baton.sim.clients import ClientSpec
from baton.sim.experiments.oracle import EFFICIENCIES, Oracle
from baton.sim.experiments.setting import Setting, Split
from baton.sim.experiments.variants import VARIANTS
from baton.sim.router import Watcher
from baton.sim.spec import ClusterSpec, NetworkSpec
from baton.sim.world import Checks, Options, World

IDEAL_NETWORK = NetworkSpec(latency_s=0.0)
IDEAL_NIC_BYTES_S = 1e15
DEFAULT_CLIENTS = ClientSpec()
REPORT_S = 0.1  # of a node's load; gateways that poll do so less often


@dataclass(frozen=True, slots=True)
class _Parts:
    cluster: ClusterSpec
    router: RouterConfig
    policy: Chooser | None
    clients: ClientSpec = DEFAULT_CLIENTS

    def make(self, setting: Setting, watch: Watcher | None) -> World:
        options = Options(self.clients, Checks(every=0))
        return World(self.cluster, setting.seed, self.router, self.policy, options, watch)


@dataclass(frozen=True, slots=True)
class Contender:
    """kind: "baseline", "baton" (a key of VARIANTS) or "oracle". admission: of Baton's policy, if not the
    usual one. efficiency: see Oracle."""

    name: str
    kind: str
    admission: str | None = None
    efficiency: float | None = None

    def tries(self) -> list[Contender]:
        """Of which the best counts: one that knows all must be told how much of it to believe."""
        if self.kind != "oracle":
            return [self]
        return [replace(self, efficiency=efficiency) for efficiency in EFFICIENCIES]

    def splits(self, setting: Setting) -> list[Split]:
        """Those that it may begin with: dedicated pools; for Baton's policy also nodes that do both."""
        splits = setting.splits()
        if self.kind != "baseline" and VARIANTS[self.variant].mixing:
            splits += [Split(p, 0, setting.nodes - p) for p in range(setting.nodes)]
        return splits

    @property
    def variant(self) -> str:
        return self.name if self.kind == "baton" else "Baton"

    def world(self, setting: Setting, split: Split, rate: float, watch: Watcher | None = None) -> World:
        make = {"baseline": self._baseline, "baton": self._baton, "oracle": self._oracle}[self.kind]
        return make(setting, split, rate).make(setting, watch)

    def _baseline(self, setting: Setting, split: Split, rate: float) -> _Parts:
        """Queues without bounds on the nodes, in order of arrival."""
        each = baseline(self.name)
        if each.local:
            split = Split(split.prefill, 0, split.decode)
        cluster = replace(_cluster(setting, split), fcfs=True, max_reservations=WITHOUT_LIMIT)
        return _Parts(cluster, each.config(), each.make(setting.seed))

    def _baton(self, setting: Setting, split: Split, rate: float) -> _Parts:
        variant = VARIANTS[self.name]
        config = variant.router(RouterConfig())
        if self.admission is not None:
            config = replace(config, admission=self.admission)
        cluster = variant.cluster(_cluster(setting, split))
        return _Parts(cluster, config, variant.policy(config))

    def _oracle(self, setting: Setting, split: Split, rate: float) -> _Parts:
        """No network between the nodes, no noise, answers' lengths known, and which requests to refuse."""
        ideal = replace(setting.profile, nic_bytes_s=IDEAL_NIC_BYTES_S, write_s=0.0, noise=0.0)
        cluster = _cluster(replace(setting, profile=ideal, network=IDEAL_NETWORK), split)
        config = RouterConfig(max_queue_wait_s=WITHOUT_LIMIT)
        exact = ClientSpec(most_tokens=None)
        return _Parts(cluster, config, Oracle(setting, rate, config, self.efficiency), exact)


def _cluster(setting: Setting, split: Split) -> ClusterSpec:
    first = replace(setting.profile, max_waiting=WITHOUT_LIMIT)
    second = replace(setting.decode_profile or first, max_waiting=WITHOUT_LIMIT)
    cluster = ClusterSpec.pools(first, split.prefill, split.decode, split.both, second)
    return replace(cluster, network=setting.network, report_s=REPORT_S)


BATON = Contender("Baton", "baton")
ORACLE = Contender("perfect knowledge", "oracle")
PUBLISHED = tuple(Contender(each.name, "baseline") for each in BASELINES)
ABLATIONS = tuple(Contender(name, "baton") for name in VARIANTS if name != "Baton")
