"""Background tasks and their ends."""

import asyncio

from baton.runtime import tasks


async def test_an_error_is_reported_and_a_cancel_is_not() -> None:
    faults: list[BaseException] = []

    async def fail() -> None:
        raise ValueError("no")

    async def wait() -> None:
        await asyncio.Event().wait()

    failing = tasks.spawn(fail(), faults.append, "fail")
    await asyncio.wait([failing])
    await asyncio.sleep(0)
    assert [str(fault) for fault in faults] == ["no"]

    waiting = tasks.spawn(wait(), faults.append, "wait")
    await asyncio.sleep(0)
    await tasks.cancel(waiting)
    assert waiting.cancelled()
    assert len(faults) == 1
