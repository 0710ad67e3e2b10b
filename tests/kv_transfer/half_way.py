"""What every transport must do when it is broken into half way through its writes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from baton.kv_transfer.api import Connection, Outcome
from baton.kv_transfer.faulty import Faults
from tests.kv_transfer.rig import LARGE, Node, Rig, rig_of, write_of

SENTINEL = 777.0
TRIES = 10


class HalfWay:
    kind: str
    faults: Faults | None = None

    def _half_way(self, met: Callable[[Rig], bool]) -> None:
        """Some of the writes are over and some are not: tried until the machine let that be met."""
        torch.set_num_threads(1)
        for _ in range(TRIES):
            with rig_of(self.kind, self.faults) as rig:
                if met(rig):
                    return
        raise AssertionError("all were applied before, every time")

    def test_cancel_half_way(self) -> None:
        self._half_way(self._cancelled_half_way)

    def _cancelled_half_way(self, rig: Rig) -> bool:
        source, target = rig.node("s", LARGE, fill=1.0), rig.node("t", LARGE, fill=0.0)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", range(1, 49))
        target.transport.open(2, "s", [48])
        for i in range(8):
            connection.submit(write_of(i, 1, range(1, 48), range(1, 48), block_size=16))
        connection.submit(write_of(8, 2, [48], [48], block_size=16))
        source.wait(1)
        connection.cancel(1)
        connection.cancel(12345)
        ended = source.wait(9)
        target.tensor[:48] = SENTINEL  # whatever landed after the last completion would show
        outcomes = {ended[i].outcome for i in range(8)}
        assert outcomes <= {Outcome.APPLIED, Outcome.CANCELLED}
        assert ended[8].outcome is Outcome.APPLIED
        target.transport.open(3, "s", [48])
        connection.submit(write_of(9, 3, [48], [48], block_size=16))
        assert source.wait(10)[9].outcome is Outcome.APPLIED
        assert bool((target.tensor[:48] == SENTINEL).all())
        return len(outcomes) == 2

    def test_fence_half_way(self) -> None:
        self._half_way(self._fenced_half_way)

    def _fenced_half_way(self, rig: Rig) -> bool:
        source, target, _ = _in_the_middle(rig)
        assert target.transport.fence(1, "s") is rig.fences
        if rig.fences:
            target.tensor.fill_(SENTINEL)
        ended = source.wait(6)
        if rig.fences:
            assert bool((target.tensor == SENTINEL).all())
        assert target.transport.fence(55, "nobody") is rig.fences
        return not rig.fences or Outcome.FAILED in {c.outcome for c in ended.values()}

    def test_closing_fails_what_is_queued_and_what_comes_later(self) -> None:
        self._half_way(self._closed_half_way)

    def _closed_half_way(self, rig: Rig) -> bool:
        source, target, connection = _in_the_middle(rig)
        connection.close()
        connection.close()
        connection.submit(write_of(6, 1, [1], [1], block_size=16))
        ended = source.wait(7)
        target.tensor.fill_(SENTINEL)
        met = ended[5].outcome is Outcome.FAILED
        assert ended[6].outcome is Outcome.FAILED
        assert ended[6].error
        second = source.transport.connect(target.peer())
        second.submit(write_of(7, 1, range(1, 49), range(1, 49), block_size=16))
        source.transport.close()
        source.transport.close()
        second.submit(write_of(8, 1, [1], [1], block_size=16))
        ended = source.wait(9)
        assert ended[8].outcome is Outcome.FAILED
        return met


def _in_the_middle(rig: Rig) -> tuple[Node, Node, Connection]:
    """Source and target of six writes under epoch 1, after the first has ended."""
    source, target = rig.node("s", LARGE, fill=1.0), rig.node("t", LARGE, fill=0.0)
    connection = source.transport.connect(target.peer())
    target.transport.open(1, "s", range(1, 49))
    for i in range(6):
        connection.submit(write_of(i, 1, range(1, 49), range(1, 49), block_size=16))
    source.wait(1)
    return source, target, connection
