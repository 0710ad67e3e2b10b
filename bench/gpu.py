"""The Triton kernels on a GPU: first whether they are right, then how close they come to what it can do.

    python -m baton.bench.gpu        # or `make gpu-check`; a few minutes

Without a GPU it says so and fails: nothing was checked.
"""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from baton.bench.gpu_checks import Check, checks
from baton.bench.gpu_figures import figures
from baton.bench.gpu_step import REAL, Sizes
from baton.bench.report import table


def main() -> int:
    """0 if every check holds and every figure reaches its target, else 1."""
    if not torch.cuda.is_available():
        print("no CUDA GPU here: nothing was checked", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    return check_and_measure(device, REAL)


def check_and_measure(device: torch.device, sizes: Sizes) -> int:
    """On `device`: the CPU under Triton's interpreter for a rehearsal."""
    console = Console()
    begun = time.perf_counter()
    results = list(checks(device, sizes))
    console.print(_table(results))
    measured = list(figures(device, sizes))
    console.print(table(measured))
    console.print(f"{time.perf_counter() - begun:.0f} s")
    return 0 if all(check.holds for check in results) and all(figure.met for figure in measured) else 1


def _table(results: list[Check]) -> Table:
    shown = Table("check", "error", "bound", "", box=None)
    for check in results:
        verdict = "[green]holds[/]" if check.holds else "[red]fails[/]"
        shown.add_row(check.name, f"{check.error:.2e}", f"{check.bound:.0e}", verdict)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
