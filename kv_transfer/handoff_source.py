"""The prefill side of every hand-off of one node. Pure; runs on the node's event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import BatonError
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.kv_transfer.handoff import PeerPool, SourceEffect, Ticket
from baton.kv_transfer.writes import Completion


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """reserve_timeout_s: how long a transfer may wait for its ticket. commit_timeout_s: for decode's last word."""

    reserve_timeout_s: float = 30.0
    commit_timeout_s: float = 10.0


class HandoffSource:
    """Transfers by id. A transfer belongs to one link (one decode node's stream, named by the caller).

    first_id: ids count up from here; choose it at random per process, so that two sources' ids, or those of
    two lives of one, do not meet at a sink. Every method returns effects to be carried out in order.
    """

    def __init__(self, block_size: int, limits: SourceLimits | None = None, *, first_id: int = 1) -> None:
        raise NotImplementedError

    def start(
        self, now: float, link: str, peer: PeerPool, request: Request, router_id: str
    ) -> list[SourceEffect]:
        """A request was accepted whose KV goes over `link`. Ends with exactly one Release."""
        raise NotImplementedError

    def ticket(self, now: float, ticket: Ticket) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def refused(self, now: float, link: str, transfer_id: int, error: BatonError) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def kv_ready(self, now: float, key: Key, tokens: int, blocks: Sequence[int]) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def prefilled(  # type: ignore[empty-body]
        self, now: float, key: Key, tokens: int, blocks: Sequence[int], output_ids: Sequence[int]
    ) -> list[SourceEffect]: ...

    def completion(self, now: float, completion: Completion) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def committed(self, now: float, link: str, transfer_id: int) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def revoke(self, now: float, link: str, transfer_id: int) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def link_lost(self, now: float, link: str) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def abort(self, now: float, key: Key) -> list[SourceEffect]:
        """The request ended on this node (first token was its last, cancelled, deadline, failed). Unknown: no-op."""
        raise NotImplementedError

    def expire(self, now: float) -> list[SourceEffect]: ...  # type: ignore[empty-body]

    def next_wakeup(self) -> float | None: ...

    def settled(self, link: str) -> bool:
        """No write of this link is under way: only then may a new stream to the same peer say Hello."""
        raise NotImplementedError

    def check(self) -> None: ...
