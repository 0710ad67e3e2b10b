"""Which nodes hold a block of KV: the prefix views of all nodes, turned round."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from baton.router.prefix_view import NodePrefixes, PromptKeys

N = TypeVar("N", bound=Hashable)
MOST_SEEN = 32  # holders named for one prompt: of a prefix that everybody has, some are as good as all


class Holders(Generic[N]):
    """Key to nodes. Most blocks are on one node, or on two, the one that computed them and the one that
    decodes after them; so only others cost a table of their own."""

    def __init__(self) -> None:
        self._one: dict[bytes, N] = {}  # who has had it for longest
        self._two: dict[bytes, N] = {}
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
        if self._one.setdefault(key, node) is node or self._two.setdefault(key, node) is node:
            return
        self._more.setdefault(key, {})[node] = None

    def _drop(self, key: bytes, node: N) -> None:
        two, more = self._two, self._more
        if self._one.get(key) is node:
            second = two.pop(key, None)
            if second is None:
                del self._one[key]
                return
            self._one[key] = second
        elif two.get(key) is node:
            del two[key]
        elif key in more:
            more[key].pop(node, None)
        if more and (others := more.get(key)) is not None:
            if others and key not in two:
                two[key] = next(iter(others))
                del others[two[key]]
            if not others:
                del more[key]

    def of(self, key: bytes) -> Iterator[N]:
        first = self._one.get(key)
        if first is not None:
            yield first
            second = self._two.get(key)
            if second is not None:
                yield second
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
        one, two, more, count = self._one, self._two, self._more, 0
        for node, view in views:
            count += len(view.stored)
            for key in view.stored:
                if one.get(key) is not node and two.get(key) is not node:
                    assert node in more.get(key, ()), "an index of prefixes lacks a node"
        assert more.keys() <= two.keys() <= one.keys(), "an index of prefixes has lost its first nodes"
        assert count == len(one) + len(two) + sum(map(len, more.values())), "an index of prefixes is wrong"
        for key, second in two.items():
            assert one[key] is not second, "a node holds a block twice"
        for key, others in more.items():
            assert others, "an index of prefixes is wrong"
            assert others.keys().isdisjoint((one[key], two[key])), "a node holds a block twice"
