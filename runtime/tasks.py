"""Background tasks that somebody answers for: the death of one by an error is reported, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def spawn(
    work: Coroutine[Any, Any, None], on_fault: Callable[[BaseException], None], name: str
) -> asyncio.Task[None]:
    """Run `work` as a task. on_fault: called with the error that ended it; not for a cancellation."""
    task = asyncio.create_task(work, name=name)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_fault(error)

    task.add_done_callback(ended)
    return task


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel it and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
