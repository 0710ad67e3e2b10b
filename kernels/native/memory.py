"""Memory for weights that are packed once and read in every step: huge pages, one weight after the other.

A core that streams weights through pages of 4 KiB spends a fifth of its time on finding them: one row times
SmolLM2-135M's matrices in fp32 reads 24.7 GB/s, and 29.6 through pages of 2 MiB. Few weights fill such a page
alone, so they share arenas.
"""

from __future__ import annotations

import math
import mmap
import weakref

import torch

_HUGE = 2 << 20
_ARENA_BYTES = 64 << 20
_ALIGNMENT = 64


class _Arena:
    """Lives as long as some tensor in it does."""

    memory: weakref.ref[mmap.mmap] | None = None
    used = 0


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor at a multiple of 64 bytes, of zeros. Call it from one thread at a time."""
    wanted = math.prod(shape) * dtype.itemsize
    memory = None if _Arena.memory is None else _Arena.memory()
    if memory is None or _Arena.used + wanted > len(memory):
        memory = _mapped(max(_ARENA_BYTES, wanted))
        _Arena.memory, _Arena.used = weakref.ref(memory), _to_huge_page(memory)
    start = _Arena.used
    _Arena.used += -(-wanted // _ALIGNMENT) * _ALIGNMENT
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=wanted).view(dtype).view(shape)


def _mapped(wanted: int) -> mmap.mmap:
    size = -(-wanted // _HUGE) * _HUGE + _HUGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _to_huge_page(memory: mmap.mmap) -> int:
    """Bytes to the first whole huge page: mappings begin at any small one."""
    return -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % _HUGE
