"""Children for tests: started by exec, talked to in JSON lines, never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from baton.kv_transfer.api import Endpoint, Peer
from baton.kv_transfer.layout import KvLayout

ROOT = Path(__file__).resolve().parents[2]


class Child:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kv_transfer.target_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        )
        self.hello = self._answer()

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Returns when every thread has stopped: the signal alone only asks for it."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        deadline = time.monotonic() + 10
        while any(
            (task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def peer(self, kind: str) -> Peer:
        told = self.hello
        layout = KvLayout(**told["layout"])
        return Peer("target", told["incarnation"], layout, Endpoint(kind, told["params"]))


@contextmanager
def child(*arguments: str) -> Iterator[Child]:
    started = Child(*arguments)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and none that it started is left
            os.killpg(started.process.pid, signal.SIGKILL)
        started.process.communicate()
