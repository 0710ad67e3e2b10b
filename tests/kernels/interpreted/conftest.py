"""Tests of Triton kernels in Triton's interpreter, which must be chosen before triton is first imported: they
are collected only where it is. tests/kernels/test_interpreted.py runs each file in a process of its own."""

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
