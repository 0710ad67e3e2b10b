"""On GPUs; see the package for the contract."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.triton_support.launch import Launch

_TILE = 1024


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = table.new_empty((len(ids), table.shape[1]), dtype=torch.float32)
    embedding_launch(ids, table, out).run()
    return out


def embedding_launch(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> Launch:
    """out: [tokens, width] of any float dtype, contiguous."""
    width = table.shape[1]
    tile = min(_TILE, triton.next_power_of_2(width))
    arguments = {"ids_ptr": ids, "table_ptr": table, "out_ptr": out, "width": width, "TILE": tile}
    return Launch(embedding_kernel, (len(ids), triton.cdiv(width, tile)), arguments, stages=1)


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, out_ptr, width, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < width
    row = tl.load(ids_ptr + token).to(tl.int64)
    values = tl.load(table_ptr + row * width + column, mask=mask, other=0.0)
    tl.store(out_ptr + token * width + column, values.to(out_ptr.dtype.element_ty), mask=mask)
