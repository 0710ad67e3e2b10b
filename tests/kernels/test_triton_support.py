"""What Triton kernels share."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from baton.kernels.triton_support.device import Gpu, gpu_of, upload


def test_one_upload_for_arrays_of_any_shape_each_aligned() -> None:
    arrays = [np.arange(5), np.zeros((0, 3), dtype=np.int64), np.arange(6).reshape(2, 3) + 2**31 - 6]
    there = upload(arrays, torch.device("cpu"))
    for array, tensor in zip(arrays, there, strict=True):
        assert tensor.dtype == torch.int32
        assert tensor.data_ptr() % 16 == 0
        assert tensor.tolist() == array.tolist()
    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1


def test_nothing_to_upload() -> None:
    assert upload([], torch.device("cpu")) == []


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="there it does")
def test_triton_does_not_run_on_a_cpu() -> None:
    with pytest.raises(ValueError, match="do not run on cpu"):
        gpu_of(torch.device("cpu"))


def test_only_later_architectures_convert_fp8_by_an_instruction() -> None:
    assert [Gpu(arch, 1).fp8_units for arch in (0, 80, 86, 89, 90, 100)] == [False] * 3 + [True] * 3
