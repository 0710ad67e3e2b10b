"""What a client's connection says while its answer is made: that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive


class ClientGone(Exception):
    """There is nobody left to answer."""


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client goes away; ClientGone comes out. The request's body has been read."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise  # somebody else wants this task to end
        raise ClientGone from None
    finally:
        watcher.cancel()
