"""Ready or failed: one JSON line from a child to its parent on an inherited pipe.

A child reports ready after the real bind, so a ready address can be connected to. A pipe that ends without a
line means that the child died.
"""

from __future__ import annotations

import asyncio
import os

from pydantic import ValidationError

from baton.core.errors import BatonError, DeadlineExceeded, FailedPrecondition, Unavailable
from baton.runtime.child import READY_FD_ENV, NotReady, Ready

MAX_LINE_BYTES = 65536


def report_ready(ready: Ready) -> None:
    """Child: say that this process serves. Without a parent that listens nothing happens."""
    _report(ready.model_dump_json())


def report_failed(error: BaseException) -> None:
    """Child: say why this process cannot start. The caller exits afterwards."""
    if isinstance(error, BatonError):
        _report(NotReady(error=error.message[:4096], field=error.field).model_dump_json())
    else:
        _report(NotReady(error=f"{type(error).__name__}: {error}"[:4096]).model_dump_json())


def _report(line: str) -> None:
    fd = os.environ.pop(READY_FD_ENV, None)
    if fd is None:
        return
    with os.fdopen(int(fd), "wb") as pipe:
        pipe.write(line.encode() + b"\n")


async def wait_ready(fd: int, name: str, timeout_s: float) -> Ready:
    """Parent: the child's word from the pipe's read end, which is closed here.

    FailedPrecondition: the child said why it cannot start. Unavailable: it died without a word.
    DeadlineExceeded: it said nothing in time.
    """
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        line = await asyncio.wait_for(reader.readline(), timeout_s)
    except TimeoutError:
        raise DeadlineExceeded(f"{name} was not ready within {timeout_s:g} s") from None
    except ValueError:
        raise Unavailable(f"{name} reported more than {MAX_LINE_BYTES} bytes") from None
    finally:
        transport.close()
    return _parse(line, name)


def _parse(line: bytes, name: str) -> Ready:
    if not line:
        raise Unavailable(f"{name} ended before it was ready")
    try:
        return Ready.model_validate_json(line)
    except ValidationError:
        pass
    try:
        failed = NotReady.model_validate_json(line)
    except ValidationError:
        raise Unavailable(f"{name} reported something unreadable: {line[:200]!r}") from None
    # Where a setting is to blame, it does not matter which process came upon it first.
    raise FailedPrecondition(failed.error if failed.field else f"{name}: {failed.error}", field=failed.field)
