"""Who owns each KV block. A block is in exactly one of these places at any time:

    free ──allocate──▶ owned (refs >= 1) ──release──▶ idle (cached, refs 0) ──evict──▶ free
                          │    ▲                         │
                          │    └────────retain───────────┘
                          └──release, not cached──▶ free
                          └──quarantine──▶ quarantined ──absolve──▶ free

Quarantined blocks belong to an aborted transfer whose writer may still write: they are not handed out
until the writer has acknowledged, died or been fenced. Block 0 is never handed out: it is the null block
that padding in block tables points at, and always holds zeros.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from baton.core.errors import BatonError

NULL_BLOCK = 0


class OutOfBlocks(BatonError):
    """The pool cannot give as many blocks as asked for. Nothing was taken."""


class BlockPool:
    """Block ids 1..num_blocks-1 with reference counts. Knows nothing about what the blocks hold."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, got {num_blocks}")
        self.num_blocks = num_blocks
        self._unused = 1  # it and all after it have not been handed out yet
        self._free: deque[int] = deque()  # those that have come back
        self._refs: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._quarantined: set[int] = set()

    @property
    def usable(self) -> int:
        """Blocks that exist for requests: all but the null block."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        return self.num_blocks - self._unused + len(self._free)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def owned(self) -> int:
        return len(self._refs)

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference. OutOfBlocks if there are fewer: evict first."""
        if count > self.free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.free} free")
        blocks = list(range(self._unused, min(self._unused + count, self.num_blocks)))
        self._unused += len(blocks)
        blocks += [self._free.popleft() for _ in range(count - len(blocks))]
        self._refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """One more owner for each block; idle blocks become owned again."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
                self._refs[block] = 1
            else:
                self._refs[block] += 1

    def release(self, blocks: Sequence[int], cached: set[int] | frozenset[int] | dict[int, bytes]) -> None:
        """One owner less for each block. The last one leaves it idle if it is in `cached`, else free.

        Blocks are released tail first, so that a prefix chain's tail is older in the idle order, and is
        evicted earlier, than its root.
        """
        for block in reversed(blocks):
            refs = self._refs[block] - 1
            if refs:
                self._refs[block] = refs
                continue
            del self._refs[block]
            if block in cached:
                self._idle[block] = None
            else:
                self._free.append(block)

    def quarantine(self, blocks: Iterable[int]) -> None:
        """Take blocks with one owner away from it, out of circulation. ValueError: nothing was taken."""
        blocks = list(blocks)
        for block in blocks:
            if self._refs.get(block) != 1:
                raise ValueError(f"block {block} has {self._refs.get(block, 0)} owners, not 1")
        for block in blocks:
            del self._refs[block]
            self._quarantined.add(block)

    def absolve(self, blocks: Iterable[int]) -> None:
        """The writer can no longer write: quarantined blocks are free again."""
        for block in blocks:
            self._quarantined.remove(block)
            self._free.append(block)

    def evict(self, count: int) -> list[int]:
        """The `count` least recently used idle blocks lose their content and are free. OutOfBlocks: there are
        fewer, nothing was taken."""
        if count > len(self._idle):
            raise OutOfBlocks(f"{count} idle KV blocks wanted, there are {len(self._idle)}")
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        self._free.extend(blocks)
        return blocks

    def refs(self, block: int) -> int:
        return self._refs.get(block, 0)

    def check(self) -> None:
        """Raise AssertionError unless every block is in exactly one place."""
        places = self._free, self._refs, self._idle, self._quarantined
        seen = set[int]().union(*places)
        assert len(seen) == sum(map(len, places)), "a block is in two places"
        assert min(seen, default=1) >= 1, "a block is unknown, or null"
        assert max(seen, default=0) < self._unused <= self.num_blocks, "a block is in two places, or unknown"
        assert len(seen) == self._unused - 1, "a block is lost"
        assert min(self._refs.values(), default=1) > 0, "an owned block has no owner"
