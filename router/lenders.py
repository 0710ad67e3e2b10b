"""The nodes that have most of a prompt's KV, so that others may fetch it from them. Pure."""

from __future__ import annotations

from itertools import islice

from baton.router.nodes import Node, Registry
from baton.router.prefix_view import PromptChains

MOST_LENDERS = 3


class Lenders:
    """Of one prompt, looked up when first asked for; good for one choice."""

    def __init__(self, registry: Registry, chains: PromptChains) -> None:
        self._registry = registry
        self._chains = chains
        self._found: dict[tuple[int, str], list[tuple[Node, int]]] = {}

    def of(self, block_size: int, revision: str) -> list[tuple[Node, int]]:
        """Nodes with such blocks and the tokens that each has at the front, about the longest first."""
        which = (block_size, revision)
        found = self._found.get(which)
        if found is None:
            found = self._found[which] = self._look(block_size, revision)
        return found

    def _look(self, block_size: int, revision: str) -> list[tuple[Node, int]]:
        holders = self._registry.holders.longest(self._chains.keys(block_size, revision))
        serving = (node for node in holders if node.serving and node.info.block_size == block_size)
        some = islice(serving, MOST_LENDERS)
        return [(node, tokens) for node in some if (tokens := self._chains.matched_tokens(node.prefixes))]
