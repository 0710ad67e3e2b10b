"""Cached KV that is on its way to nodes that asked for it. Pure; in the engine thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.core.errors import NotFound, ResourceExhausted
from baton.core.kvcache import KvCache
from baton.core.node_effects import Key

MOST = 32
MOST_SHARE = 0.25  # of the pool may be held by loans: what waits here for room comes first


class Loans:
    """Each holds a reference to its blocks, from `lend` to `release`."""

    def __init__(self, kv: KvCache) -> None:
        self._kv = kv
        self._blocks: dict[Key, list[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def lend(self, key: Key, keys: Sequence[bytes], keep_blocks: int) -> tuple[int, ...]:
        """The blocks of the longest beginning that is cached here. keep_blocks: those that others here are
        about to need must stay available. NotFound: there are none; ResourceExhausted: too much is lent."""
        if key in self._blocks or len(self._blocks) >= MOST:
            raise ResourceExhausted(f"{len(self._blocks)} loans are under way")
        blocks = self._kv.match(keys)
        if not blocks:
            raise NotFound("nothing of it is cached here any more")
        lent = sum(map(len, self._blocks.values())) + len(blocks)
        if lent > MOST_SHARE * self._kv.pool.usable or self._kv.available < keep_blocks:
            self._kv.release(blocks)
            raise ResourceExhausted("this node needs its KV blocks itself")
        self._blocks[key] = blocks
        return tuple(blocks)

    def release(self, key: Key) -> bool:
        """No write reads the blocks any more. False: there is no such loan."""
        blocks = self._blocks.pop(key, None)
        if blocks is None:
            return False
        self._kv.release(blocks)
        return True

    def owned(self) -> Iterator[list[int]]:
        """The blocks of each loan: every one a reference."""
        return iter(self._blocks.values())

    def check(self) -> None:
        """Raise AssertionError unless every lent block is still what it was lent as."""
        assert len(self._blocks) <= MOST
        for blocks in self._blocks.values():
            assert all(self._kv.pool.kept(block) for block in blocks), "a lent block was given away"
