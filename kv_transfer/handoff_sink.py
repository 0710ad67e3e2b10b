"""The decode side of every hand-off of one node. Pure; runs in the engine thread, owns the reserved blocks."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.kvcache import KvCache
from baton.core.node_effects import Key, SinkEffect
from baton.core.request import Request


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """max_waiting: reservations without a ticket; max_granted: with one, not yet committed. lease_s: a link
    without a beat for so long counts as lost. max_bypass: how many later reservations may overtake one that
    does not fit yet."""

    max_model_len: int
    vocab_size: int
    max_waiting: int = 256
    max_granted: int = 256
    max_bypass: int = 8
    lease_s: float = 10.0


@dataclass(frozen=True, slots=True)
class SinkStats:
    waiting: int
    reserved: int  # tickets given, not yet committed
    quarantined_transfers: int
    stale: int  # messages of transfers that are not, or no longer, known


class HandoffSink:
    """Reservations by (link, transfer id). link: one *writer*, named by node id and incarnation: a new stream of
    the same incarnation is the same link. Every method returns effects to be carried out in order."""

    def __init__(self, kv: KvCache, limits: SinkLimits, revision: str) -> None:
        raise NotImplementedError

    def reserve(  # type: ignore[empty-body]
        self, now: float, link: str, transfer_id: int, request: Request, router_id: str = ""
    ) -> list[SinkEffect]:
        """Queue a reservation, or refuse it. Its deadline is now + request.timeout_s. Tickets come by `pump`."""

    def pump(self, now: float, keep_blocks: int = 0) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def commit(  # type: ignore[empty-body]
        self, now: float, link: str, transfer_id: int, tokens: int, output_ids: tuple[int, ...]
    ) -> list[SinkEffect]: ...

    def abandon(self, now: float, link: str, transfer_id: int) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def revoked(self, now: float, link: str, transfer_id: int) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def fenced(self, link: str, transfer_id: int) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def beat(self, now: float, link: str) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def link_lost(self, now: float, link: str) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def writer_returned(self, now: float, link: str) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def writer_dead(self, now: float, link: str) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def abort(self, now: float, key: Key) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def expire(self, now: float) -> list[SinkEffect]: ...  # type: ignore[empty-body]

    def next_wakeup(self) -> float | None: ...

    def stats(self) -> SinkStats: ...  # type: ignore[empty-body]

    def check(self) -> None: ...
