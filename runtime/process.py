"""One child process of a launcher: started with a message, ready when it says so, gone when asked.

Started afresh (never forked from a process that has gRPC threads), in a session of its own: Ctrl-C in the
terminal reaches the launcher only, which then stops its children in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import BatonError, DeadlineExceeded
from baton.runtime.child import CONFIG_FD_ENV, PARENT_ENV, READY_FD_ENV, NodeStart, Ready, RouterStart
from baton.runtime.ready import wait_ready

EXIT_WAIT_S = 1.0  # between "not ready" and the process's end


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: the interpreter's arguments, like ("-m", "baton.cli.node")."""

    args: tuple[str, ...]

    @property
    def argv(self) -> Sequence[str]:
        return (sys.executable, *self.args)


class Child:
    """A running child. `exit_code` is None while it runs; negative: the signal that ended it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready_fd: int) -> None:
        self.name = name
        self._process = process
        self._ready_fd = ready_fd

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def ready(self, timeout_s: float) -> Ready:
        """The child's word, once. On an error (see `wait_ready`) the child is ended before this returns."""
        fd, self._ready_fd = self._ready_fd, -1
        try:
            return await wait_ready(fd, self.name, timeout_s)
        except BatonError as error:
            code = await self._end_after_failure(0 if isinstance(error, DeadlineExceeded) else EXIT_WAIT_S)
            if "ended before" in error.message:
                error.message += f" ({describe_exit(code)})"
            raise
        except asyncio.CancelledError:
            await self.stop(0)
            raise

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, and SIGKILL after `grace_s`; the exit code. Idempotent."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1
        if self._process.returncode is None and grace_s > 0:
            self._signal(signal.SIGTERM)
            try:
                return await asyncio.wait_for(self._process.wait(), grace_s)
            except TimeoutError:
                pass
        if self._process.returncode is None:
            self.kill()
        return await self._process.wait()

    async def _end_after_failure(self, wait_s: float) -> int:
        try:
            return await asyncio.wait_for(self._process.wait(), wait_s)
        except TimeoutError:
            return await self.stop(0)

    def _signal(self, number: int) -> None:
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            pass  # it has just ended

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # its session's leader, so its group's too
        except ProcessLookupError:
            pass


async def spawn(program: Program, start: NodeStart | RouterStart) -> Child:
    """Start a child and hand it its message; it is not ready yet."""
    config_fd = os.memfd_create(f"baton-{start.name}")
    read_fd, write_fd = os.pipe()
    try:
        with os.fdopen(os.dup(config_fd), "wb") as stream:
            stream.write(start.model_dump_json().encode())
        process = await asyncio.create_subprocess_exec(
            *program.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=2,  # standard output is the launcher's own: an answer, or JSON for a program
            pass_fds=(config_fd, write_fd),
            start_new_session=True,
            env={"GRPC_VERBOSITY": "NONE"}  # a port in use, a peer gone: our own errors say it
            | os.environ
            | {
                "PYTHONSAFEPATH": "1",  # the working directory must not shadow packages
                "PYTHONUNBUFFERED": "1",
                CONFIG_FD_ENV: str(config_fd),
                READY_FD_ENV: str(write_fd),
                PARENT_ENV: str(os.getpid()),
            },
        )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(config_fd)
        os.close(write_fd)
    return Child(start.name, process, read_fd)


def describe_exit(code: int) -> str:
    """`exit code 3`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
