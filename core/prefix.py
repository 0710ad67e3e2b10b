"""Which block holds which prefix: a hash chain over full blocks of token ids.

Each full block's key is `blake2b(tokens, key=parent)`, 16 bytes; the chain starts from a root key over
length-prefixed, tagged fields (cluster key, model revision, adapter, salt). So equal keys mean equal whole
prefixes within one tenant, in every process and after every restart (no use of Python's salted `hash`), a
collision would need 2**64 work, and no two tuples of fields share a root.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

HASH_BYTES = 16
DEFAULT_KEY = b"baton-prefix-v1"
BIG_ENDIAN = sys.byteorder == "big"  # keys are the same there as anywhere


@lru_cache(maxsize=1024)
def root_key(
    *, salt: str = "", adapter: str = "", revision: str = "", cluster_key: bytes = DEFAULT_KEY
) -> bytes:
    """The key that a chain of one (cluster, model revision, adapter, salt) starts from. 16 bytes."""
    digest = blake2b(digest_size=HASH_BYTES)
    for tag, value in (
        (b"c", cluster_key),
        (b"r", revision.encode()),
        (b"a", adapter.encode()),
        (b"s", salt.encode()),
    ):
        digest.update(tag + struct.pack("<I", len(value)) + value)
    return digest.digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of the block that holds `token_ids` after the prefix that `parent` stands for."""
    words = array("I", token_ids)  # of four bytes each
    if BIG_ENDIAN:
        words.byteswap()
    return blake2b(words, key=parent, digest_size=HASH_BYTES).digest()


def chain(root: bytes, token_ids: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Keys of all full blocks of `token_ids`, first to last."""
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_key(parent, token_ids[start : start + block_size])
        yield parent


class PrefixIndex:
    """key -> block, and back. Holds no references: the pool decides who owns a block."""

    def __init__(self) -> None:
        self._block: dict[bytes, int] = {}
        self._key: list[bytes | None] = []  # by block

    def __len__(self) -> int:
        return len(self._block)

    def keys(self) -> Iterator[bytes]:
        return iter(self._block)

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Every key with its block."""
        return iter(self._block.items())

    def get(self, key: bytes) -> int | None:
        return self._block.get(key)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of the chain `keys`."""
        blocks = []
        for key in keys:
            block = self._block.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, key: bytes, block: int) -> bool:
        """Make `block` findable. False (and no change) if the key is known already or the block is."""
        if key in self._block:
            return False
        if block >= len(self._key):
            self._key.extend([None] * (block + 1 - len(self._key)))
        elif self._key[block] is not None:
            return False
        self._block[key] = block
        self._key[block] = key
        return True

    def remove(self, block: int) -> bytes:
        """Forget a block; returns its key. KeyError: it has none."""
        key = self._key[block] if block < len(self._key) else None
        if key is None:
            raise KeyError(block)
        self._key[block] = None
        del self._block[key]
        return key

    def check(self) -> None:
        keys = self._key
        assert len(self._block) == len(keys) - keys.count(None), "a block is found by several keys, or none"
        for key, block in self._block.items():
            assert keys[block] is key, "a key leads to another block"
