"""Targets in the same process: for tests, and the plainest example of a backend."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from baton.core.errors import FailedPrecondition, Unavailable
from baton.kv_transfer.api import Completion, Endpoint, Peer, Pool
from baton.kv_transfer.completions import Completions
from baton.kv_transfer.layout import compatible
from baton.kv_transfer.local import CopyThread, Gate, LocalConnection, Route
from baton.kv_transfer.permits import Permits, refusal
from baton.kv_transfer.pool_view import PoolView

_targets: weakref.WeakValueDictionary[str, InprocTransport] = weakref.WeakValueDictionary()
_names = itertools.count()


class InprocTransport:
    kind = "inproc"

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.permits = Permits()
        self.view: PoolView | None = None
        self._name = f"{incarnation}-{next(_names)}"
        self._completions = Completions()
        self._thread = CopyThread("kv-inproc", self._completions)

    def register(self, pool: Pool) -> None:
        self.view = PoolView(pool)
        _targets[self._name] = self

    def describe(self) -> Endpoint:
        return Endpoint(self.kind, {"name": self._name})

    def connect(self, peer: Peer) -> LocalConnection:
        target = _targets.get(peer.endpoint.params.get("name", ""))
        if target is None or target.view is None or target.incarnation != peer.incarnation:
            raise Unavailable(f"{peer.node_id}: no incarnation {peer.incarnation!r} in this process")
        if self.view is None:
            raise FailedPrecondition("no pool is registered")
        if problems := compatible(self.view.layout, target.view.layout):
            raise FailedPrecondition(f"{peer.node_id}: {'; '.join(problems)}")
        return LocalConnection(self._thread, Route(self.view, target.view, self._gate(target)))

    def _gate(self, target: InprocTransport) -> Gate:
        @contextmanager
        def gate(transfer_id: int, first: int, count: int) -> Iterator[str]:
            grant = target.permits.find(transfer_id, self.incarnation)
            if grant is None:
                yield refusal(None, transfer_id, first, count)
                return
            with grant.lock:
                yield refusal(grant, transfer_id, first, count)

        return gate

    def poll(self) -> list[Completion]:
        return self._completions.poll()

    def open(self, transfer_id: int, source_incarnation: str, blocks: Sequence[int]) -> None:
        self.permits.open(transfer_id, source_incarnation, blocks)

    def fence(self, transfer_id: int, source_incarnation: str) -> bool:
        self.permits.end(transfer_id, source_incarnation)
        return True

    def set_waker(self, waker: Callable[[], None]) -> None:
        self._completions.set_waker(waker)

    def close(self) -> None:
        _targets.pop(self._name, None)
        self.permits.end_all()
        self._thread.stop()
