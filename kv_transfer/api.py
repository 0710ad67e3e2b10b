"""The one interface that every way of moving KV implements. Backend details never enter it.

A node makes one transport per backend it offers. The *target* side registers its pool and describes how to
reach it; the *source* side connects to such a description, submits transfers and polls for their end. All
calls but `connect` and `close` return at once and may come from any thread; work happens on the backend's own
threads; `waker` is called (from any thread, often) when `poll` has something new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.writes import Completion, Outcome, Write

__all__ = ["Completion", "Connection", "Endpoint", "KvTransport", "Outcome", "Peer", "Pool", "Write"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a pool can be written to from elsewhere. params are backend-specific and checked by the backend."""

    kind: str
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """A node's KV memory: `tensor` has `layout.tensor_shape` and `layout.tensor_dtype`, contiguous."""

    tensor: torch.Tensor
    layout: KvLayout


@dataclass(frozen=True, slots=True)
class Peer:
    """A target pool as its owner described it. incarnation: the owner's; a restart is another peer."""

    node_id: str
    incarnation: str
    layout: KvLayout
    endpoint: Endpoint


class Connection(Protocol):
    """Source side of one (transport, peer) pair."""

    def submit(self, write: Write) -> None:
        """Queue a write; a connection carries writes out in order. Its Completion comes by `poll`, also when
        the write is malformed (FAILED, the error says how) or the connection broken or closed. The source
        blocks must keep their content until then."""

    def cancel(self, transfer_id: int) -> None:
        """Stop this transfer's queued and running writes; each still gets its Completion."""

    @property
    def broken(self) -> bool:
        """No write can succeed any more: connect anew. The waker is called when it comes to that."""

    def close(self) -> None:
        """Fail what is queued; free what the connection holds. Idempotent."""


class KvTransport(Protocol):
    kind: str

    def register(self, pool: Pool) -> None:
        """Name the local pool: source of submits, target for peers. Once."""

    def describe(self) -> Endpoint:
        """How peers reach the registered pool."""

    def connect(self, peer: Peer) -> Connection:
        """Open the way to a peer's pool. FailedPrecondition: layouts cannot be converted (the item is named);
        Unavailable: not reachable by this backend from here, or another incarnation answers (named). May
        block for the connect timeout or the mapping of a large pool: call it off the event loop."""

    def poll(self) -> list[Completion]:
        """Completions since the last call, in the order they happened."""

    def open(self, transfer_id: int, source_incarnation: str, blocks: Sequence[int]) -> None:
        """Target side: from now on writes of this transfer may land, in these blocks only. Transfer ids are
        the source's, so it takes both to name one. Opening it again ends the earlier permission first. End it
        with `fence` also when the transfer went well: otherwise a late write could still land in blocks that
        are in use."""

    def fence(self, transfer_id: int, source_incarnation: str) -> bool:
        """Target side: end the permission. True: no write of it can land any more, starting now. False: this
        backend cannot stop the writer (it writes the memory itself): wait for its word, or its death. A write
        whose end the target had not yet confirmed becomes FAILED at the source. Always fence where that
        works, even when the source promised silence: its promise covers what it sends, not what a paused
        receiver still finds in its socket."""

    def set_waker(self, waker: Callable[[], None]) -> None: ...

    def close(self) -> None:
        """Fail what is open, stop threads, unlink names, close sockets. Completions may still be polled.
        Idempotent."""
