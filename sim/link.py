"""One life of a hand-off link between two simulated processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.node_effects import Key, KvReady, Prefilled
from baton.core.request import Request
from baton.kv_transfer.handoff import PeerPool
from baton.sim.clock import Entry


@dataclass(slots=True, eq=False)
class Stream:
    """What both ends hold of it. alive: False once either end, or the network, broke it."""

    source: str
    source_incarnation: str
    target: str
    target_incarnation: str
    alive: bool = True

    @property
    def link(self) -> str:
        """The writer's name, as the sink knows it."""
        return f"{self.source}/{self.source_incarnation}"


@dataclass(slots=True, eq=False)
class Waiting:
    """A request whose link is not up yet, with the latest news of its KV."""

    request: Request
    ready: KvReady | None = None
    prefilled: Prefilled | None = None


@dataclass(slots=True, eq=False)
class OutLink:
    """The writer's end. waiting: None once it is up. owed: its peer may keep blocks out of use until the next
    Hello. exports: transfers begun and not over."""

    name: str
    stream: Stream
    waiting: dict[Key, Waiting] | None = field(default_factory=dict)
    up: bool = False
    owed: bool = False
    tries: int = 0
    exports: int = 0
    peer: PeerPool | None = None
    beat: Entry | None = None


@dataclass(slots=True, eq=False)
class InLink:
    """The reader's end: the stream that is in use now, and how far each open transfer's KV has come."""

    stream: Stream
    opened: dict[int, int] = field(default_factory=dict)  # transfer id -> how many tokens are there
