"""A deployment for the length of a block, in a terminal: progress while it starts, signals that stop it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from baton.cli.terminal import notes
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import Launcher


class Stopped(Exception):
    """A signal asked for the end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextlib.asynccontextmanager
async def launched(config: ClusterConfig) -> AsyncIterator[Launcher]:
    """Start a deployment, run the block, stop the deployment: whatever happens, nothing is left running.

    The first SIGINT or SIGTERM cancels the block (Stopped comes out), the second kills what still runs.
    """
    task = asyncio.current_task()
    assert task is not None
    launcher = Launcher(config, progress=lambda text: status.update(text))
    stopped: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        stopped.append(number)
        if len(stopped) == 1:
            task.cancel()
        else:
            launcher.supervisor.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    status = notes.status("starting")
    try:
        with status:
            await launcher.start()
        yield launcher
    except asyncio.CancelledError:
        if not stopped:
            raise
        task.uncancel()
        raise Stopped(stopped[0]) from None
    finally:
        unfinished = await launcher.unfinished() if notes.is_terminal else 0
        with notes.status(leaving(unfinished)):
            await launcher.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def leaving(unfinished: int) -> str:
    """What the stop waits for, in words."""
    doing = f"finishing {unfinished} request{'s'[: unfinished != 1]}" if unfinished else "stopping"
    return f"{doing}; Ctrl-C again stops at once"
