"""Instruction sets that this machine has, and what test cases give with each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from baton.kernels import native

ALL = ("avx2", "avx512", "amx")
HERE = native.isa()
LESSER = ALL[: ALL.index(HERE)] if HERE else ()
"""Than the one that computes here."""


def digests_by(isa: str, cases: str) -> dict[str, str]:
    """Of a module of cases, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.kernels.{cases}"],
        env={**os.environ, "BATON_CPU_ISA": isa, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    child = json.loads(done.stdout)
    assert child["isa"] == isa
    found: dict[str, str] = child["digests"]
    return found
