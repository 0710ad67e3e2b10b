"""On GPUs; see the package for the contract."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.triton_support.launch import Launch

_TILE = 1024


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    silu_mul_launch(gate_up, out).run()
    return out


def silu_mul_launch(gate_up: torch.Tensor, out: torch.Tensor) -> Launch:
    """gate_up: [tokens, 2 * size], contiguous in the last dimension; out: [tokens, size]."""
    tokens, size = out.shape
    tile = min(_TILE, triton.next_power_of_2(size))
    arguments = {
        "gate_up_ptr": gate_up,
        "out_ptr": out,
        "gate_up_stride": gate_up.stride(0),
        "size": size,
        "TILE": tile,
    }
    return Launch(silu_mul_kernel, (tokens, triton.cdiv(size, tile)), arguments, stages=1)


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, gate_up_stride, size, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < size
    row = gate_up_ptr + token * gate_up_stride
    gate = tl.load(row + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row + size + column, mask=mask, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # of any gate within 0 to 1
    out = gate * tl.where(gate < 0.0, small, 1.0) / (1.0 + small) * up
    tl.store(out_ptr + token * size + column, out.to(out_ptr.dtype.element_ty), mask=mask)
