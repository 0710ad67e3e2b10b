"""What the router knows of each node's prefix cache, and how much of a prompt it would find there."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from baton.core.prefix import chain, root_key

MAX_BLOCKS = 8192


class PromptKeys:
    """A prompt's chain of block keys, computed only as far as somebody needs it.

    The last token of a prompt is always computed (its logits are wanted), so a block that holds it never
    counts as cached. Matches are followed for MAX_BLOCKS: some 20 ms of hashing, in which the router does
    nothing else.
    """

    def __init__(self, token_ids: Sequence[int], block_size: int, revision: str, salt: str) -> None:
        self._usable = min(MAX_BLOCKS, (len(token_ids) - 1) // block_size)
        root = root_key(salt=salt, revision=revision)
        self._chain: Iterator[bytes] = chain(root, token_ids, block_size)
        self._keys: list[bytes] = []
        self.block_size = block_size

    def matched_tokens(self, stored: Container[bytes]) -> int:
        """Tokens of the longest prefix whose blocks are all in `stored`."""
        return self.known_blocks(stored) * self.block_size

    def known_blocks(self, stored: Container[bytes]) -> int:
        """Blocks of that prefix."""
        keys = self._keys
        count = 0
        for key in keys:
            if key not in stored:
                return count
            count += 1
        while count < self._usable:
            key = next(self._chain)
            keys.append(key)
            if key not in stored:
                break
            count += 1
        return count

    def key(self, block: int) -> bytes:
        """Of a block that `known_blocks` came to."""
        return self._keys[block]


class PromptChains:
    """One request's PromptKeys, one per (block size, model revision), made when first asked for."""

    def __init__(self, token_ids: Sequence[int], salt: str) -> None:
        self._token_ids = token_ids
        self._salt = salt
        self._made: dict[tuple[int, str], PromptKeys] = {}

    def matched_tokens(self, view: NodePrefixes) -> int:
        """Prompt tokens that the node would find cached."""
        if not view.stored:
            return 0
        return self.keys(view.block_size, view.revision).matched_tokens(view.stored)

    def keys(self, block_size: int, revision: str) -> PromptKeys:
        which = (block_size, revision)
        keys = self._made.get(which)
        if keys is None:
            keys = self._made[which] = PromptKeys(self._token_ids, block_size, revision, self._salt)
        return keys


class NodePrefixes:
    """Keys in one node's cache. Never iterated, so the order of the set cannot matter."""

    def __init__(self, block_size: int, revision: str) -> None:
        self.block_size = block_size
        self.revision = revision
        self.stored: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.stored)

    def change(self, stored: Sequence[bytes], removed: Sequence[bytes], *, reset: bool) -> None:
        """Both lists are in the order things happened, but their interleaving is unknown: a key in both is
        there afterwards if it was stored as often as it was removed and had been there, or more often."""
        if reset:
            self.stored = set()
        known = self.stored
        both = set(stored).intersection(removed) if stored and removed else ()
        kept = [key for key in both if (key in known) + stored.count(key) > removed.count(key)]
        known.update(stored)
        known.difference_update(removed)
        known.update(kept)
