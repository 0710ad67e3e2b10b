"""What the edge makes of errors that are not a handler's own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from baton.runtime.grpc_interceptor import EdgeInterceptor


async def test_a_stream_that_breaks_under_its_handler_is_no_error_of_ours() -> None:
    counted: list[tuple[str, str]] = []
    edge = EdgeInterceptor(1 << 20, lambda method, code: counted.append((method, code)))

    async def handler(request: Any, context: Any) -> AsyncIterator[int]:
        yield 1
        raise grpc.aio.BaseError("server already stopped")

    wrapped = edge._wrap("/m", handler)
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        async for _ in wrapped(None, None):
            pass
    assert counted == [("/m", "UNAVAILABLE")]
    assert logs == []
