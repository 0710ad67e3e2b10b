"""Run a module as a program, as a launcher's child in tests: `child.py LOG PACE MODULE`.

LOG: file that gets its output; "-": that goes where the launcher's does. PACE: file with the seconds that
each step of its engine takes longer; it may be replaced at any time. So an answer takes as long as a test
needs, however busy the machine is, and uses no processor for it.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from baton.core.batch import Batch, StepOutput


def main(log: str, pace: str, module: str) -> None:
    if log != "-":
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(file, number)
        os.close(file)
    if module.endswith(".node"):
        slow_down(Path(pace))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def slow_down(pace: Path) -> None:
    from baton.engine.torch_runner import TorchRunner  # a router does without

    run = TorchRunner.run

    def slowly(self: TorchRunner, batch: Batch) -> StepOutput:
        if batch.rows and (step_s := float(pace.read_text() or 0)):
            time.sleep(step_s)
        return run(self, batch)

    TorchRunner.run = slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
