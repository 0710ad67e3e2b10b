"""A rehearsal of `make gpu-check`: all of its code but the stopwatch of the device, on tiny sizes."""

from __future__ import annotations

import pytest
import torch

from baton.bench import gpu_checks
from baton.bench.gpu_figures import figures
from baton.bench.gpu_step import TINY

CPU = torch.device("cpu")


def test_checks_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "SCHEMES", ("int8", "int4", "fp8-w8a8"))  # test_linear has all
    results = list(gpu_checks.checks(CPU, TINY))
    assert [check for check in results if not check.holds] == []
    assert {"cascade", "routing, int4", "stored KV, int8"} <= {check.name for check in results}


def test_figures_are_those_of_the_targets() -> None:
    measured = list(figures(CPU, TINY))
    assert all(figure.value > 0 and figure.limit > 0 for figure in measured)
    assert [figure.target for figure in measured] == [0.8] * 6 + [0.6, 10.0]
