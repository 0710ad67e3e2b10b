"""The only source of chance in the product: one uniform number per (seed, output position).

The values are part of the product's contract: a request that is retried on another node, or on another
release in the same cluster, must continue the very same text. `tests/engine/sampler/test_noise.py` pins them.
"""

from __future__ import annotations

from hashlib import blake2b

_PERSON = b"baton.sample.v1"
_SCALE = 2.0**-53


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) for `position` (0: first output token) of a request seeded with `seed`.

    BLAKE2b (RFC 7693) over both as little-endian signed 64-bit integers; the top 53 bits of the digest, so
    that every value is an exact double and 1.0 is impossible.
    """
    message = seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little", signed=True)
    digest = blake2b(message, digest_size=8, person=_PERSON).digest()
    return (int.from_bytes(digest, "little") >> 11) * _SCALE
