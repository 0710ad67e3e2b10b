"""On GPUs: the same bits as the reference, since fp64 divides, multiplies and adds alike everywhere, and
nothing is fused; see the package for the contract."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.logits.types import LARGEST, LogitEdits
from baton.kernels.triton_support.launch import Launch

_TILE = 256


def apply(logits: torch.Tensor, edits: LogitEdits) -> None:
    """edits: on the logits' device."""
    edits_launch(logits, edits).run()


def edits_launch(logits: torch.Tensor, edits: LogitEdits) -> Launch:
    entries = len(edits.ids)
    arguments = {
        "logits_ptr": logits,
        "rows_ptr": edits.rows,
        "ids_ptr": edits.ids,
        "repetition_ptr": edits.repetition,
        "add_ptr": edits.add,
        "row_stride": logits.stride(0),
        "entries": entries,
        "LARGEST": LARGEST,
        "TILE": _TILE,
    }
    return Launch(edits_kernel, (triton.cdiv(entries, _TILE),), arguments, stages=1, fused=False)


@triton.jit
def edits_kernel(
    logits_ptr,
    rows_ptr,
    ids_ptr,
    repetition_ptr,
    add_ptr,
    row_stride,
    entries,
    LARGEST: tl.constexpr,
    TILE: tl.constexpr,
):
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = entry < entries
    place = tl.load(rows_ptr + entry, mask=mask, other=0) * row_stride
    place += tl.load(ids_ptr + entry, mask=mask, other=0)
    repetition = tl.load(repetition_ptr + entry, mask=mask, other=1.0)
    add = tl.load(add_ptr + entry, mask=mask, other=0.0)
    before = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float64)
    x = tl.where(before > 0.0, before / repetition, before * repetition) + add
    # By comparisons, which leave a NaN alone.
    largest = tl.full([TILE], LARGEST, tl.float64)
    x = tl.where(x > largest, largest, tl.where(x < -largest, -largest, x))
    x = tl.where(tl.abs(before) == float("inf"), before, x)
    x = tl.where(add == float("-inf"), add, x)
    tl.store(logits_ptr + place, x.to(tl.float32), mask=mask)
