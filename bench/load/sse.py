"""Server-sent events out of bytes as they come
(https://html.spec.whatwg.org/multipage/server-sent-events.html).

Only data matters here: names, ids and retry times of events are read over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_EVENT_BYTES = 16 * 2**20
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"


class SseError(ValueError):
    """The bytes are no event stream."""


class SseReader:
    """`feed` bytes, get the data of every event that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, piece: bytes) -> Iterator[str]:
        self._rest += piece
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        start = 0
        for found in _LINE_END.finditer(self._rest):
            if found.group() == b"\r" and found.end() == len(self._rest):
                break  # perhaps the first half of \r\n
            line, start = self._rest[start : found.start()], found.end()
            yield from self._line(line)
        self._rest = self._rest[start:]

    @property
    def open(self) -> bool:
        """An event has begun and not ended."""
        return bool(self._rest.strip() or self._data)

    def _line(self, line: bytes) -> Iterator[str]:
        if self._first:
            self._first = False
            line = line.removeprefix(_MARK)
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            elif name not in (b"", b"event", b"id", b"retry"):
                raise SseError(f"a line that begins with {name[:40]!r}")
        elif self._data:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            try:
                yield data.decode()
            except UnicodeDecodeError:
                raise SseError("an event that is not UTF-8") from None
