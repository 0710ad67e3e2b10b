"""Who owns each KV block. A block is in exactly one of these places at any time:

    free ──allocate──▶ owned (refs >= 1) ──release──▶ idle (kept, refs 0) ──evict──▶ free
                          │    ▲                         │
                          │    └────────retain───────────┘
                          └──release, not kept──▶ free
                          └──quarantine──▶ quarantined ──absolve──▶ free

Owned blocks that somebody may look for later are kept (`keep`). Quarantined ones belong to an aborted
transfer whose writer may still write: they are not handed out until the writer has acknowledged, died or been
fenced. Block 0 is never handed out: it is the null block that padding in block tables points at, and always
holds zeros.

A pool has some ten thousand blocks, a simulated cluster some ten million: so a block's place is a byte, and
the idle ones are a queue in which entries stay when their blocks are owned again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from operator import countOf
from typing import Final

from baton.core.errors import BatonError

NULL_BLOCK = 0
FREE: Final = 0  # places, by number: from KEPT on somebody owns it
QUARANTINED: Final = 1
IDLE: Final = 2
KEPT: Final = 3  # idle once nobody owns it
OWNED: Final = 4  # free then
SPARE_ENTRIES = 64  # of the idle queue, beyond twice the idle blocks


class OutOfBlocks(BatonError):
    """The pool cannot give as many blocks as asked for. Nothing was taken."""


class BlockPool:
    """Block ids 1..num_blocks-1 with reference counts. Knows nothing about what the blocks hold."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, got {num_blocks}")
        self.num_blocks = num_blocks
        self.owned = self.idle = self.quarantined = 0
        self._unused = 1  # it and all after it have not been handed out yet
        self._free: deque[int] = deque()  # those that have come back
        self._place = bytearray(num_blocks)
        self._more: dict[int, int] = {}  # owners beyond the first, where there are any
        self._queue: deque[int] = deque()  # the idle ones, least recently used first
        self._stale: dict[int, int] = {}  # so many of its first entries are from before it was owned again

    @property
    def usable(self) -> int:
        """Blocks that exist for requests: all but the null block."""
        return self.num_blocks - 1

    @property
    def free(self) -> int:
        return self.num_blocks - self._unused + len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference. OutOfBlocks if there are fewer: evict first."""
        if count > self.free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.free} free")
        blocks = list(range(self._unused, min(self._unused + count, self.num_blocks)))
        self._unused += len(blocks)
        blocks += [self._free.popleft() for _ in range(count - len(blocks))]
        place = self._place
        for block in blocks:
            place[block] = OWNED
        self.owned += count
        return blocks

    def keep(self, block: int) -> None:
        """With its last owner gone it is idle, not free. KeyError: nobody owns it."""
        if self._place[block] < KEPT:
            raise KeyError(block)
        self._place[block] = KEPT

    def retain(self, blocks: Iterable[int]) -> None:
        """One more owner for each block; idle blocks become owned again. KeyError: it is neither."""
        place = self._place
        for block in blocks:
            where = place[block]
            if where >= KEPT:
                self._more[block] = self._more.get(block, 0) + 1
            elif where == IDLE:
                place[block] = KEPT
                self.idle -= 1
                self.owned += 1
                self._stale[block] = self._stale.get(block, 0) + 1
            else:
                raise KeyError(block)
        if len(self._queue) > 2 * self.idle + SPARE_ENTRIES:
            self._shorten()

    def release(self, blocks: Sequence[int]) -> None:
        """One owner less for each block. The last one leaves it idle if it is kept, else free. KeyError:
        nobody owns it.

        Blocks are released tail first, so that a prefix chain's tail is older in the idle order, and is
        evicted earlier, than its root.
        """
        place, more = self._place, self._more
        for block in reversed(blocks):
            where = place[block]
            if where < KEPT:
                raise KeyError(block)
            if more and block in more:
                more[block] -= 1
                if not more[block]:
                    del more[block]
                continue
            self.owned -= 1
            if where == KEPT:
                place[block] = IDLE
                self.idle += 1
                self._queue.append(block)
            else:
                place[block] = FREE
                self._free.append(block)

    def quarantine(self, blocks: Iterable[int]) -> None:
        """Take blocks with one owner, which are not kept, away from it, out of circulation. ValueError:
        nothing was taken."""
        blocks = list(blocks)
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is named twice: {blocks}")
        for block in blocks:
            if self.refs(block) != 1:
                raise ValueError(f"block {block} has {self.refs(block)} owners, not 1")
            if self._place[block] == KEPT:
                raise ValueError(f"block {block} may be found: a write to it would be seen")
        for block in blocks:
            self._place[block] = QUARANTINED
        self.owned -= len(blocks)
        self.quarantined += len(blocks)

    def absolve(self, blocks: Iterable[int]) -> None:
        """The writer can no longer write: quarantined blocks are free again. KeyError: it is none of them."""
        for block in blocks:
            if self._place[block] != QUARANTINED:
                raise KeyError(block)
            self._place[block] = FREE
            self._free.append(block)
            self.quarantined -= 1

    def evict(self, count: int) -> list[int]:
        """The `count` least recently used idle blocks lose their content and are free. OutOfBlocks: there are
        fewer, nothing was taken."""
        if count > self.idle:
            raise OutOfBlocks(f"{count} idle KV blocks wanted, there are {self.idle}")
        queue, place = self._queue, self._place
        blocks: list[int] = []
        while len(blocks) < count:
            block = queue.popleft()
            if self._stale and self._counts_no_more(block):
                continue
            place[block] = FREE
            blocks.append(block)
        self.idle -= count
        self._free.extend(blocks)
        return blocks

    def refs(self, block: int) -> int:
        return 1 + self._more.get(block, 0) if self._place[block] >= KEPT else 0

    def kept(self, block: int) -> bool:
        """Whether it has been kept, and not been evicted since."""
        return IDLE <= self._place[block] <= KEPT

    @property
    def all_kept(self) -> int:
        """How many are. O(blocks)."""
        return self._place.count(KEPT) + self.idle

    def check(self) -> None:
        """Raise AssertionError unless every block is in exactly one place."""
        place, unused = self._place, self._unused
        assert 1 <= unused <= self.num_blocks, "there are more blocks than that"
        assert place[NULL_BLOCK] == FREE, "the null block is used"
        assert len(set(self._free)) == len(self._free), "a block is in two places"
        for block in self._free:
            assert 0 < block < unused, "a block is in two places, or unknown"
            assert place[block] == FREE, "a block is in two places"
        assert place.count(FREE, unused) == self.num_blocks - unused, "a block is unknown"
        assert place.count(FREE, 1, unused) == len(self._free), "a block is lost"
        assert place.count(QUARANTINED) == self.quarantined, "a block is lost in quarantine"
        assert place.count(OWNED) + place.count(KEPT) == self.owned, "an owned block has no owner"
        for block, extra in self._more.items():
            assert extra > 0, "an owned block has no owner"
            assert place[block] >= KEPT, "a block has owners, and is free"
        assert place.count(IDLE) == self.idle, "an idle block has an owner"
        entries = Counter(self._queue) if self._stale else dict.fromkeys(self._queue, 1)
        for block, stale in self._stale.items():
            entries[block] -= stale
        idle = [block for block, count in entries.items() if count] if self._stale else entries
        assert len(self._queue) == self.idle + sum(self._stale.values()), "an idle block is queued twice"
        assert len(idle) == self.idle, "an idle block is not queued"
        assert countOf(map(place.__getitem__, idle), IDLE) == self.idle, "a queued block is not idle"

    def _counts_no_more(self, block: int) -> bool:
        """Whether the block's first entry in the queue, which is being taken off, is from before it was owned
        again."""
        stale = self._stale.get(block, 0)
        if stale > 1:
            self._stale[block] = stale - 1
        elif stale:
            del self._stale[block]
        return stale > 0

    def _shorten(self) -> None:
        """Drop entries that count no more."""
        self._queue = deque([block for block in self._queue if not self._counts_no_more(block)])
