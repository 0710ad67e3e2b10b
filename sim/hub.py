"""What all simulated processes share: time, the network, who is there, and whom nodes report to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from baton.core.load import LoadReport
from baton.router.events import Event, NodeInfo
from baton.sim.clock import Clock
from baton.sim.flows import Flows
from baton.sim.host import Host
from baton.sim.network import Network
from baton.sim.spec import ClusterSpec

if TYPE_CHECKING:
    from baton.sim.node import SimNode

ROUTER = "router"


class Inbox(Protocol):
    """The router's side of all streams of nodes. Called when a message has arrived."""

    def joined(self, info: NodeInfo) -> None: ...

    def reported(self, node_id: str, incarnation: str, load: LoadReport) -> None: ...

    def events(self, node_id: str, incarnation: str, events: Sequence[Event]) -> None: ...

    def lost(self, node_id: str, incarnation: str, reason: str) -> None: ...


@dataclass(slots=True)
class Hub:
    """nodes: the processes that run now, by node id. hosts: those that nodes share, by name. leaps: whether
    steps whose batch stays the same are taken together. beat_s: how long a node may say nothing. touched:
    nodes at which something has happened since somebody last looked. roles: (when, node id, role it took)."""

    clock: Clock
    network: Network
    flows: Flows
    cluster: ClusterSpec
    seed: int
    leaps: bool = True
    beat_s: float = 1.0
    nodes: dict[str, SimNode] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    report_delays: dict[str, float] = field(default_factory=dict)
    roles: list[tuple[float, str, str]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    inbox: Inbox = field(init=False)

    def host(self, name: str) -> Host:
        return self.hosts.setdefault(name, Host())

    def dice(self, name: str) -> Random:
        """Dice of somebody's own: what others throw does not change them."""
        return Random(f"{self.seed}/{name}")
