"""The block pool and the prefix index as one thing: what schedulers allocate from.

Pure bookkeeping: blocks are ids here; the engine owns the memory. Whoever allocates must have the engine
clear the new blocks (`take_dirty`) before anything reads them, so stale data of an earlier owner can
neither be seen nor, as NaN, spoil a masked lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.blocks import BlockPool, OutOfBlocks
from baton.core.prefix import PrefixIndex


@dataclass(slots=True)
class KvEvents:
    """The net change of what is findable since the last drain: keys of `prefix.chain`. No key is in both, so
    the order in which they are applied does not matter."""

    stored: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)


class KvCache:
    """Allocation with eviction, prefix match, and the record of what changed.

    block_size: tokens per block. With `prefix_caching` off nothing is ever findable.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._dirty: list[int] = []

    @property
    def available(self) -> int:
        """Blocks that can be allocated now, evicting idle ones."""
        return self.pool.free + self.pool.idle

    @property
    def usage(self) -> float:
        """Share of the pool that is owned or quarantined, in [0, 1]: idle cached blocks count as free."""
        return (self.pool.owned + self.pool.quarantined) / self.pool.usable

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix, each retained for the caller."""
        blocks = self.index.match(keys) if self.prefix_caching else []
        self.pool.retain(blocks)
        return blocks

    def peek(self, keys: Sequence[bytes]) -> int:
        """How many blocks `match` would give, without taking them."""
        return len(self.index.match(keys)) if self.prefix_caching else 0

    def allocate(self, count: int) -> list[int]:
        """`count` new blocks, evicting least recently used idle ones. OutOfBlocks: nothing taken."""
        if count > self.available:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.available} available of {self.pool.usable}")
        for victim in self.pool.evict(count - self.pool.free) if count > self.pool.free else ():
            _note(self.index.remove(victim), self._removed, undoes=self._stored)
        blocks = self.pool.allocate(count)
        self._dirty.extend(blocks)
        return blocks

    def publish(self, key: bytes, block: int) -> None:
        """A full, computed block becomes findable."""
        if self.prefix_caching and self.index.insert(key, block):
            self.pool.keep(block)
            _note(key, self._stored, undoes=self._removed)

    def unify(self, key: bytes, block: int) -> int:
        """As `publish`, but where another block is found by that key already, the caller's reference to
        `block` becomes one to that. Returns the block that the caller has now. Nothing may be using the old
        one."""
        known = self.index.get(key) if self.prefix_caching else None
        if known is None or known == block:
            self.publish(key, block)
            return block
        self.pool.retain([known])
        self.release([block])
        return known

    def release(self, blocks: Sequence[int]) -> None:
        self.pool.release(blocks)

    def quarantine(self, blocks: Sequence[int]) -> None:
        """Blocks of an aborted transfer: none of them was published, each has one owner (else ValueError)."""
        self.pool.quarantine(blocks)

    def absolve(self, blocks: Sequence[int]) -> None:
        self.pool.absolve(blocks)

    def take_dirty(self) -> list[int]:
        """Blocks allocated since the last call: the engine must zero them before they are used."""
        dirty, self._dirty = self._dirty, []
        return dirty

    @property
    def changed(self) -> bool:
        """Whether there is something to drain."""
        return bool(self._stored or self._removed)

    def drain_events(self) -> KvEvents:
        events = KvEvents(list(self._stored), list(self._removed))
        self._stored, self._removed = {}, {}
        return events

    def check(self) -> None:
        """Raise AssertionError unless pool and index agree and every block is in exactly one place."""
        self.pool.check()
        self.index.check()
        pool = self.pool
        for _, block in self.index.items():
            assert pool.kept(block), "a free block is findable"
        assert pool.all_kept == len(self.index), "an idle block cannot be found"


def _note(key: bytes, change: dict[bytes, None], *, undoes: dict[bytes, None]) -> None:
    """Record a change, unless it takes back one that nobody has heard of yet."""
    if key in undoes:
        del undoes[key]
    else:
        change[key] = None
