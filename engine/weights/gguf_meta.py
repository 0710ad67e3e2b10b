"""Read the key-value part of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The `gguf` package does this too, but makes an array object of every string: seconds for a tokenizer, where
this takes milliseconds. Tensors are not looked at. The file is untrusted: every length is checked against
its size.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from baton.core.errors import InvalidArgument

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_metadata(path: Path) -> dict[str, Any]:
    """Keys and values: numbers, booleans, strings, and lists of these.

    Raises InvalidArgument (field `model`) if the file is not GGUF version 2 or 3, or is cut short.
    """
    with _reader(path) as reader:
        return {reader.string(): reader.value(reader.number("I")) for _ in range(reader.start())}


def raw_metadata(path: Path, keys: Sequence[str]) -> dict[str, bytes]:
    """The values of those of `keys` that are there, as they are encoded, type included. Raises as above."""
    with _reader(path) as reader:
        spans = {reader.string(): reader.span() for _ in range(reader.start())}
        return {key: reader.read(*spans[key]) for key in keys if key in spans}


@contextmanager
def _reader(path: Path) -> Iterator[_Reader]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Reader(data)
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise InvalidArgument(f"cannot read {path} as GGUF: {error}", field="model") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def start(self) -> int:
        """How many key-value pairs follow."""
        if self._take(4) != _MAGIC:
            raise ValueError("no GGUF magic at its start")
        version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported")
        self.number("Q")  # tensors
        return int(self.number("Q"))

    def read(self, start: int, end: int) -> bytes:
        return self._data[start:end]

    def span(self) -> tuple[int, int]:
        """Where a value lies, its type included; it is passed over."""
        start = self._at
        self._skip(self.number("I"))
        return start, self._at

    def _skip(self, kind: int) -> None:
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner == _STRING:
                self._skip_strings(count)
            elif inner in _FORMATS:
                self._pass(count * struct.calcsize("<" + _FORMATS[inner]))
            else:
                for _ in range(count):
                    self._skip(inner)
        elif kind == _STRING:
            self._skip_strings(1)
        else:
            self.value(kind)

    def _skip_strings(self, count: int) -> None:
        data, at, length = self._data, self._at, _LENGTH.unpack_from
        for _ in range(count):
            at += 8 + length(data, at)[0]
        self._pass(at - self._at)

    def _pass(self, size: int) -> None:
        self._at = self._end_of(size)

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._end_of(size)
        return self._data[start : self._at]

    def _end_of(self, size: int) -> int:
        end = self._at + size
        if end > len(self._data):
            raise ValueError(f"ends at byte {len(self._data)}, inside an item that needs {end}")
        return end

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self._take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._list(self.number("I"), self.number("Q"))
        if kind not in _FORMATS:
            raise ValueError(f"unknown value type {kind}")
        return self.number(_FORMATS[kind])

    def _list(self, kind: int, count: int) -> list[Any]:
        if kind in _FORMATS:
            code = _FORMATS[kind]
            return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize("<" + code))))
        return [self.value(kind) for _ in range(count)]
