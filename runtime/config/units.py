"""Byte sizes as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|kB|KB|KiB|MB|MiB|GB|GiB|TB|TiB)")
_FACTOR = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_bytes(value: object) -> object:
    """`"512MiB"` or a whole number of bytes to bytes; anything else is returned for the type check to refuse.

    Decimal units (kB, MB, GB) are powers of 1000, binary ones (KiB, MiB, GiB) powers of 1024; case matters,
    so that `mb` (millibits) is not taken for a guess.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a size: write bytes as a number, or like 512MiB or 2GB")
    number, unit = match.groups()
    return int(float(number) * _FACTOR[unit])
