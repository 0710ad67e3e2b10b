"""Which nodes hold a block of KV: the prefix views of all nodes, turned round."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from baton.router.prefix_view import NodePrefixes, PromptKeys

N = TypeVar("N", bound=Hashable)
MOST_SEEN = 32  # holders named for one prompt: of a prefix that everybody has, some are as good as all


class Holders(Generic[N]):
    """Key to nodes. Most blocks are on one node, so only others cost a table of their own."""

    def __init__(self) -> None:
        self._one: dict[bytes, N] = {}
        self._more: dict[bytes, dict[N, None]] = {}

    def __len__(self) -> int:
        return len(self._one)

    def __contains__(self, key: object) -> bool:
        return key in self._one

    def change(
        self, node: N, view: NodePrefixes, stored: Sequence[bytes], removed: Sequence[bytes], *, reset: bool
    ) -> None:
        """As NodePrefixes.change, for `view` and the index together."""
        if not reset and (not removed or not stored or set(stored).isdisjoint(removed)):
            view.stored.difference_update(removed)
            view.stored.update(stored)
            for key in removed:
                self._drop(key, node)
            for key in stored:
                self._add(key, node)
            return
        gone = view.stored if reset else set[bytes]()
        stored, removed = tuple(stored), tuple(removed)
        view.change(stored, removed, reset=reset)
        now = view.stored
        for key in gone:
            if key not in now:
                self._drop(key, node)
        for key in removed:
            if key not in now:
                self._drop(key, node)
        for key in stored:
            if key in now:
                self._add(key, node)

    def _add(self, key: bytes, node: N) -> None:
        first = self._one.setdefault(key, node)
        if first is not node:
            self._more.setdefault(key, {})[node] = None

    def _drop(self, key: bytes, node: N) -> None:
        more = self._more.get(key)
        if self._one.get(key) is node:
            if more:
                self._one[key] = next(iter(more))
                del more[self._one[key]]
            else:
                del self._one[key]
        elif more:
            more.pop(node, None)
        if more is not None and not more:
            del self._more[key]

    def of(self, key: bytes) -> Iterator[N]:
        first = self._one.get(key)
        if first is not None:
            yield first
            yield from self._more.get(key, ())

    def longest(self, keys: PromptKeys) -> Iterator[N]:
        """Nodes that hold the prompt's last known block, then those that hold one before it, and so on, each
        once: as caches drop a prefix from its end, these are about the longest matches, best first."""
        block = keys.known_blocks(self._one) - 1
        seen: dict[N, None] = {}
        step = 1
        while block >= 0:
            before = len(seen)
            for node in self.of(keys.key(block)):
                if node not in seen:
                    seen[node] = None
                    yield node
                    if len(seen) >= MOST_SEEN:
                        return
            step = 1 if len(seen) > before else 2 * step  # the holders of a block hold those before it, too
            block = max(0, block - step) if block else -1

    def check(self, views: Iterable[tuple[N, NodePrefixes]]) -> None:
        one, more, count = self._one, self._more, 0
        for node, view in views:
            count += len(view.stored)
            for key, first in zip(view.stored, map(one.get, view.stored), strict=True):
                assert first is node or node in more.get(key, ()), "an index of prefixes lacks a node"
        assert more.keys() <= one.keys(), "an index of prefixes has lost its first nodes"
        assert count == len(one) + sum(map(len, more.values())), "an index of prefixes is wrong"
        assert not any(one[key] in others for key, others in more.items()), "a node holds a block twice"
