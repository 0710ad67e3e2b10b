"""The sequences of a decode scheduler: in the batch or waiting for it, and who goes first, who gives way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from baton.core.node_effects import Key
from baton.core.phase import Move
from baton.core.sequence import Sequence
from baton.decode_node.limits import DecodeLimits


class Residents:
    """running: in the batch (Phase.DECODE). ready: committed, paused or preempted (Phase.READY); those
    without blocks must be computed again first."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self.running: dict[Key, Sequence] = {}
        self.ready: dict[Key, Sequence] = {}
        self._batch: list[Sequence] | None = None  # of `running`, by rank; None: not known

    def rank(self, seq: Sequence) -> tuple[float, Key]:
        """Smallest first: older first, a step of priority being worth some seconds, so that none starves."""
        return seq.arrived_s + seq.request.priority * self._limits.priority_s, seq.key

    def all(self) -> Iterator[Sequence]:
        return chain(self.running.values(), self.ready.values())

    def get(self, key: Key) -> Sequence | None:
        return self.running.get(key) or self.ready.get(key)

    def batch(self) -> list[Sequence]:
        """What runs, by rank."""
        if self._batch is None:
            self._batch = sorted(self.running.values(), key=self.rank)
        return self._batch

    def queue(self) -> list[Sequence]:
        return sorted(self.ready.values(), key=self.rank)

    def run(self, seq: Sequence) -> None:
        seq.move(Move.RUN)
        self.running[seq.key] = self.ready.pop(seq.key)
        self._batch = None

    def pause(self, seq: Sequence) -> None:
        """Out of the batch; its KV stays."""
        seq.move(Move.PREEMPT)
        self.ready[seq.key] = self.running.pop(seq.key)
        self._batch = None

    def remove(self, seq: Sequence) -> None:
        self.running.pop(seq.key, None)
        self.ready.pop(seq.key, None)
        self._batch = None

    def last_holder(self) -> Sequence | None:
        """Who gives its blocks first: the last in rank, so low priority and young. By rank alone, as the
        batch is gone through by rank: then whoever gives way has no row in this step yet."""
        return max((seq for seq in self.all() if seq.blocks), key=self.rank, default=None)

    def slot_for(self, seq: Sequence) -> tuple[bool, Sequence | None]:
        """Whether the batch has a place for `seq`, and who must leave for it: only one of lower priority that
        has not waited its way up."""
        if len(self.running) < self._limits.max_running:
            return True, None
        worst = max(self.running.values(), key=lambda other: (other.request.priority, self.rank(other)))
        yields = worst.request.priority > seq.request.priority and self.rank(worst) > self.rank(seq)
        return yields, worst if yields else None
