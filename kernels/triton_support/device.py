"""Facts about a device, and how a step's small integer arrays get there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

# Slices of one upload start at multiples of 16 bytes: Triton compiles aligned and unaligned pointers apart.
_ALIGN_INTS = 4


@dataclass(frozen=True, slots=True)
class Gpu:
    """arch: compute capability as 10 * major + minor, 0 for Triton's interpreter. sms: multiprocessors."""

    arch: int
    sms: int

    @property
    def fp8_units(self) -> bool:
        """Whether e4m3 is converted by an instruction (sm_89 on)."""
        return self.arch >= 89


INTERPRETER = Gpu(arch=0, sms=2)


@cache
def gpu_of(device: torch.device) -> Gpu:
    """ValueError: Triton does not run there (the CPU needs TRITON_INTERPRET=1 before triton is imported)."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Gpu(10 * properties.major + properties.minor, properties.multi_processor_count)
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return INTERPRETER
    raise ValueError(f"Triton kernels do not run on {device}")


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Integer arrays, any shapes, as int32 tensors there, in one copy that does not wait for the device.

    Values beyond 32 bits are an error of the caller and are not looked for.
    """
    begins, total = [], 0
    for array in arrays:
        begins.append(total)
        total += -(-array.size // _ALIGN_INTS) * _ALIGN_INTS
    pinned = device.type == "cuda"
    host = torch.empty(max(total, _ALIGN_INTS), dtype=torch.int32, pin_memory=pinned)
    flat = host.numpy()
    for begin, array in zip(begins, arrays, strict=True):
        flat[begin : begin + array.size] = array.reshape(-1)
    there = host.to(device, non_blocking=True)
    return [
        there[begin : begin + array.size].view(array.shape)
        for begin, array in zip(begins, arrays, strict=True)
    ]
