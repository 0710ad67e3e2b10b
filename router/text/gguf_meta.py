"""Read the key-value part of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The `gguf` package does this too, but makes an array object of every string: seconds for a tokenizer, where
this takes milliseconds. Tensors are not looked at. The file is untrusted: every length is checked against
its size.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from baton.core.errors import InvalidArgument

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_metadata(path: Path) -> dict[str, Any]:
    """Keys and values: numbers, booleans, strings, and lists of these.

    Raises InvalidArgument (field `model`) if the file is not GGUF version 2 or 3, or is cut short.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise InvalidArgument(f"cannot read {path} as GGUF: {error}", field="model") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> dict[str, Any]:
        if self._take(4) != _MAGIC:
            raise ValueError("no GGUF magic at its start")
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported")
        self._number("Q")  # tensors
        return {self._string(): self._value(self._number("I")) for _ in range(self._number("Q"))}

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError(f"ends at byte {len(self._data)}, inside an item that needs {end}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._list(self._number("I"), self._number("Q"))
        if kind not in _FORMATS:
            raise ValueError(f"unknown value type {kind}")
        return self._number(_FORMATS[kind])

    def _list(self, kind: int, count: int) -> list[Any]:
        if kind in _FORMATS:
            code = _FORMATS[kind]
            return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize("<" + code))))
        return [self._value(kind) for _ in range(count)]
