"""One life of a hand-off link between two simulated processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.node_effects import Key, KvReady, Prefilled
from baton.core.request import Request
from baton.kv_transfer.handoff import Loan, PeerPool
from baton.kv_transfer.writes import Write
from baton.sim.clock import Entry


@dataclass(slots=True, eq=False)
class Stream:
    """What both ends hold of it. alive: False once either end, or the network, broke it. link: the writer's
    name, as the sink knows it."""

    source: str
    source_incarnation: str
    target: str
    target_incarnation: str
    alive: bool = True
    link: str = field(init=False)

    def __post_init__(self) -> None:
        self.link = f"{self.source}/{self.source_incarnation}"


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, or a loan of blocks, whose link is not up yet, with the latest news of its KV."""

    key: Key
    request: Request | None = None
    loan: Loan | None = None
    blocks: tuple[int, ...] = ()
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
class Grant:
    """Room for a transfer: `blocks` hold the tokens from `cached_tokens` on. And what has come of them."""

    cached_tokens: int
    blocks: tuple[int, ...]
    block_size: int
    came: list[tuple[int, int]] = field(default_factory=list)  # [start, end), in the order of landing

    @property
    def tokens(self) -> int:
        """How many are there."""
        return self.cached_tokens + sum(end - start for start, end in self.came)

    def land(self, write: Write) -> None:
        """AssertionError: twice, or beyond what was granted. Writes share the link, so a short one may
        overtake a long one: their order is free."""
        start, end, size = write.start, write.end, self.block_size
        first = (start - self.cached_tokens) // size
        granted = self.blocks[first : first + len(write.dst_blocks)] if first >= 0 else ()
        assert tuple(write.dst_blocks) == granted, "KV for blocks that were not granted"
        assert write.dst_first <= start < end <= write.dst_first + size * len(granted), "KV beyond its blocks"
        assert all(end <= begun or over <= start for begun, over in self.came), "KV came twice"
        self.came.append((start, end))


@dataclass(slots=True, eq=False)
class InLink:
    """The reader's end: the stream that is in use now, and the open transfers by id."""

    stream: Stream
    opened: dict[int, Grant] = field(default_factory=dict)
