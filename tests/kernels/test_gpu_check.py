"""`make gpu-check` where there is no GPU. tests/kernels/interpreted/test_gpu_check.py rehearses the rest."""

from __future__ import annotations

import pytest
import torch

from baton.bench import gpu
from baton.bench.__main__ import _measurements


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nobody_takes_it_for_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main() == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "no CUDA GPU here: nothing was checked\n")


def test_measurements_of_the_cpu_leave_it_out() -> None:
    assert not [name for name in _measurements() if name.startswith("gpu")]
