"""Targets on the same host: their pool lies in shared memory and the source copies straight into it.

One copy per byte. The target takes no part in it, so it cannot fence a source either; a source notices
before each piece, and before it calls a write applied, that the target has died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from baton.core.errors import FailedPrecondition
from baton.kv_transfer.api import Completion, Endpoint, Peer, Pool
from baton.kv_transfer.completions import Completions
from baton.kv_transfer.layout import compatible
from baton.kv_transfer.local import CopyThread, Gate, LocalConnection, Route
from baton.kv_transfer.pool_view import PoolView
from baton.kv_transfer.segment import MappedPool, SharedPool


class ShmTransport:
    """shared: the segment that the registered pool lies in; None: this node is never a target.

    The segment is the caller's to close, after the transport.
    """

    kind = "shm"

    def __init__(self, shared: SharedPool | None = None) -> None:
        self._shared = shared
        self._view: PoolView | None = None
        self._completions = Completions()
        self._thread = CopyThread("kv-shm", self._completions)

    def register(self, pool: Pool) -> None:
        self._view = PoolView(pool)
        if self._shared is not None and not self._shared.holds(pool.tensor):
            raise FailedPrecondition(f"the pool does not lie in {self._shared.path}")

    def describe(self) -> Endpoint:
        if self._shared is None:
            raise FailedPrecondition("this pool is not in shared memory")
        return Endpoint(self.kind, {"name": self._shared.path.name})

    def connect(self, peer: Peer) -> LocalConnection:
        if self._view is None:
            raise FailedPrecondition("no pool is registered")
        if problems := compatible(self._view.layout, peer.layout):
            raise FailedPrecondition(f"{peer.node_id}: {'; '.join(problems)}")
        mapped = MappedPool(peer.endpoint.params.get("name", ""), peer.incarnation, peer.layout)
        target = PoolView(Pool(mapped.tensor, peer.layout))
        return LocalConnection(self._thread, Route(self._view, target, _gate(mapped, peer)))

    def poll(self) -> list[Completion]:
        return self._completions.poll()

    def open(self, transfer_id: int, source_incarnation: str, blocks: Sequence[int]) -> None:
        """Nothing to do: whoever can map the pool can write all of it."""

    def fence(self, transfer_id: int, source_incarnation: str) -> bool:
        return False

    def set_waker(self, waker: Callable[[], None]) -> None:
        self._completions.set_waker(waker)

    def close(self) -> None:
        self._thread.stop()


def _gate(mapped: MappedPool, peer: Peer) -> Gate:
    alive = nullcontext("")
    gone = nullcontext(f"{peer.node_id}: incarnation {peer.incarnation!r} has gone")

    def gate(transfer_id: int, first: int, count: int) -> AbstractContextManager[str]:
        return gone if mapped.orphaned() else alive

    return gate
