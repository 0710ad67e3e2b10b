"""Runs each file of tests/kernels/interpreted in a process where Triton interprets its kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.timeout(300)  # for the whole file; each of its tests has a limit of its own
@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_*.py")), ids=lambda path: path.stem)
def test_under_the_interpreter(path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "pytest", path, "-q", "--no-header", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
