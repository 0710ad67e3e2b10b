"""What nodes said of themselves during a run: roles, queues, KV in use, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.load import LoadReport
from baton.router.events import Effect, Event, NodeJoined, NodeLost, NodeReported

GONE = "gone"


@dataclass(frozen=True, slots=True)
class Stay:
    """A node's time in one role (or GONE): [from_s, until_s)."""

    node_id: str
    from_s: float
    until_s: float
    role: str


@dataclass(slots=True)
class Lane:
    """Of one node. samples: (time, decode rows and prompts in work or waiting, share of KV blocks in use)."""

    roles: list[tuple[float, str]] = field(default_factory=list)
    samples: list[tuple[float, int, float]] = field(default_factory=list)


class Timeline:
    """A World's `watch`. every_s: at most one sample of a node in that time."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.lanes: dict[str, Lane] = {}
        self.end_s = 0.0
        self._every_s = every_s

    def watch(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        self.end_s = now
        match event:
            case NodeReported(node_id, _, load):
                self._note(now, node_id, load)
            case NodeJoined(info):
                self._note(now, info.node_id, info.load)
            case NodeLost(node_id):
                self._role(now, node_id, GONE)

    def _note(self, now: float, node_id: str, load: LoadReport) -> None:
        self._role(now, node_id, load.role.value)
        samples = self.lanes[node_id].samples
        if not samples or now - samples[-1][0] >= self._every_s:
            used = 1.0 - load.blocks_free / load.blocks_total if load.blocks_total else 0.0
            samples.append((now, load.running + load.waiting, used))

    def _role(self, now: float, node_id: str, role: str) -> None:
        roles = self.lanes.setdefault(node_id, Lane()).roles
        if not roles or roles[-1][1] != role:
            roles.append((now, role))

    def stays(self) -> list[Stay]:
        """In order of node and time."""
        found = []
        for node_id, lane in self.lanes.items():
            ends = [at for at, _ in lane.roles[1:]] + [self.end_s]
            found += [Stay(node_id, at, end, role) for (at, role), end in zip(lane.roles, ends, strict=True)]
        return found

    @property
    def changes(self) -> int:
        """How often a node took another role."""
        return sum(len(lane.roles) - 1 for lane in self.lanes.values())
