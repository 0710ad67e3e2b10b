"""Buffers start with whatever the process left there: none of it may reach a token."""

import os
import subprocess
import sys

import pytest

from tests.models import write_model

# All memory comes from the heap and stays in it: the system would give zeroed pages.
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}
CHILD = """
import sys
import torch
from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import load

# Sees what the buffers of a step begin with.
def empty(*args, **kwargs):
    made = real(*args, **kwargs)
    met.append(made.is_floating_point() and bool(made.isnan().any()))
    return made

met = []
real, torch.empty = torch.empty, empty
greedy = SamplingParams(temperature=0.0)
for kv in ("float32", "int8", "fp8", "float32", "int8", "fp8"):
    loaded = load(EngineConfig(sys.argv[1], kv_dtype=kv, threads=1, block_size=4))
    runner = loaded.runner(64)
    met.clear()
    junk = [torch.full((2**k,), float("nan")) for k in range(4, 23) for _ in range(4)]
    del junk
    out = runner.run(Batch((Row(("a", 0), [222], 0, [1], True, greedy, [222], 1),), clear=(1,)))
    assert out.rows[0].token_id is not None, kv
    assert any(met), f"no buffer of {len(met)} began with NaN: the test would show nothing"
"""


def test_nan_left_in_freed_memory_reaches_no_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a process of its own, whose freed memory is what comes next."""
    model = str(write_model(tmp_path_factory.mktemp("dirty") / "T", "T"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, model],
        env=os.environ | HEAP,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
