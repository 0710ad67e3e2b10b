"""On GPUs: a program per vector; see the package for the contract."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.triton_support.launch import Launch

# So many elements keep a warp's loads in flight; beyond 16 warps a block would leave no room for a second.
_PER_WARP = 512
_MOST_WARPS = 16


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    flat = _rows(x)
    out = torch.empty_like(flat, memory_format=torch.contiguous_format)
    rms_norm_launch(flat, None, weight, eps, out).run()
    return out.view(x.shape)


def add_rms_norm(x: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x is changed in place; x and update must be views of rows at one stride."""
    flat = x.view(-1, x.shape[-1])
    out = torch.empty_like(flat, memory_format=torch.contiguous_format)
    rms_norm_launch(flat, _rows(update), weight, eps, out).run()
    return out.view(x.shape)


def rms_norm_launch(
    x: torch.Tensor, update: torch.Tensor | None, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> Launch:
    """x, update: [rows, size], contiguous in size. With `update`, x becomes their sum."""
    rows, size = x.shape
    tile = triton.next_power_of_2(size)
    arguments = {
        "x_ptr": x,
        "update_ptr": update,
        "weight_ptr": weight,
        "out_ptr": out,
        "x_stride": x.stride(0),
        "update_stride": 0 if update is None else update.stride(0),
        "eps": eps,
        "SIZE": size,
        "HAS_UPDATE": update is not None,
        "TILE": tile,
    }
    warps = min(_MOST_WARPS, max(1, tile // _PER_WARP))
    return Launch(rms_norm_kernel, (rows,), arguments, warps=warps, stages=1)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


@triton.jit
def normed(values, squares, weight, eps, SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """fp32 values by the root of their mean square, rounded to DTYPE and then weighed, in fp32 again."""
    return weight * (values * tl.rsqrt(squares / SIZE + eps)).to(DTYPE).to(tl.float32)


@triton.jit
def rms_norm_kernel(
    x_ptr,
    update_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    update_stride,
    eps,
    SIZE: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    mask = column < SIZE
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        update = tl.load(update_ptr + row * update_stride + column, mask=mask, other=0.0)
        rounded = (x + update.to(tl.float32)).to(dtype)
        tl.store(x_ptr + row * x_stride + column, rounded, mask=mask)
        x = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    out = normed(x, tl.sum(x * x, 0), weight, eps, SIZE, dtype)
    tl.store(out_ptr + row * SIZE + column, out.to(dtype), mask=mask)
