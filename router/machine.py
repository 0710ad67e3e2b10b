"""The router's decisions: pure, `step(now, event) -> effects`. Time comes in, work to do goes out."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.load import LoadReport
from baton.router.events import Effect, Event, NodeInfo
from baton.router.machine_config import RouterConfig
from baton.router.policy import Policy


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as operators see it. state: "up", "draining", "suspect" or "lost"; in_flight: this
    router's requests on it now; incompatible: (other node, differing items)."""

    info: NodeInfo
    load: LoadReport
    state: str
    in_flight: int
    cached_blocks: int
    incompatible: tuple[tuple[str, tuple[str, ...]], ...]
    report_age_s: float


class RouterMachine:
    """See the page's docstring. Call `step(now, Tick())` no later than `next_wakeup()`."""

    def __init__(self, config: RouterConfig, policy: Policy | None = None) -> None:
        raise NotImplementedError

    def step(self, now: float, event: Event) -> list[Effect]:
        """Effects, to be carried out in order. Raises (and changes nothing): IllegalTransition for an
        Arrived whose id is alive, NotFound for an operator's event that names no known node."""
        raise NotImplementedError

    def next_wakeup(self) -> float | None:
        """When `Tick` is due (machine clock); None: no need. O(1), call it after every step."""
        raise NotImplementedError

    @property
    def queued(self) -> int:
        """Requests waiting at the router."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Requests on nodes."""
        raise NotImplementedError

    def nodes(self, now: float) -> list[NodeStatus]:
        raise NotImplementedError

    def node_in_flight(self, node_id: str) -> int:
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether some pair of nodes could take a request now, were there room."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise AssertionError unless all derived state agrees with the live requests."""
        raise NotImplementedError
