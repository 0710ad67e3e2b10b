"""Which nodes hold a block of KV: the prefix views of all nodes, turned round."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from baton.router.prefix_view import NodePrefixes, PromptKeys

N = TypeVar("N", bound=Hashable)
MOST_SEEN = 32  # holders named for one prompt: of a prefix that everybody has, some are as good as all


class Holders(Generic[N]):
    """Key to nodes, in the order in which they came by it. Most blocks are on one or two nodes, so tuples."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, tuple[N, ...]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def change(
        self, node: N, view: NodePrefixes, stored: Sequence[bytes], removed: Sequence[bytes], *, reset: bool
    ) -> None:
        """As NodePrefixes.change, for `view` and the index together."""
        if not reset and (not removed or not stored or set(stored).isdisjoint(removed)):
            view.stored.difference_update(removed)
            view.stored.update(stored)
            self._drop(removed, node)
            self._add(stored, node)
            return
        gone = view.stored if reset else set[bytes]()
        stored, removed = tuple(stored), tuple(removed)
        view.change(stored, removed, reset=reset)
        now = view.stored
        self._drop([key for key in gone if key not in now], node)
        self._drop([key for key in removed if key not in now], node)
        self._add([key for key in stored if key in now], node)

    def _add(self, keys: Iterable[bytes], node: N) -> None:
        nodes, alone = self._nodes, (node,)
        for key in keys:
            held = nodes.setdefault(key, alone)
            if held is not alone and node not in held:
                nodes[key] = (*held, node)

    def _drop(self, keys: Iterable[bytes], node: N) -> None:
        nodes = self._nodes
        for key in keys:
            held = nodes.get(key, ())
            if node in held:
                if len(held) == 1:
                    del nodes[key]
                else:
                    nodes[key] = tuple([each for each in held if each is not node])

    def of(self, key: bytes) -> tuple[N, ...]:
        return self._nodes.get(key, ())

    def longest(self, keys: PromptKeys) -> Iterator[N]:
        """Nodes that hold the prompt's last known block, then those that hold one before it, and so on, each
        once: as caches drop a prefix from its end, these are about the longest matches, best first."""
        block = keys.known_blocks(self._nodes) - 1
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
        nodes, count = self._nodes, 0
        for node, view in views:
            count += len(view.stored)
            for key, held in zip(view.stored, map(nodes.get, view.stored), strict=True):
                assert held is not None and node in held, "an index of prefixes lacks a node"
        assert count == sum(map(len, nodes.values())), "an index of prefixes is wrong, or has a node twice"
        assert all(nodes.values()), "an index of prefixes keeps what nobody holds"
