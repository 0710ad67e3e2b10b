"""On GPUs; see the package for the contract."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.attention.kv_layer import CODE_MAX
from baton.kernels.attention.triton_codes import as_bfloat16, codes_of, decode_codes, scales_of
from baton.kernels.attention.triton_tuning import padded
from baton.kernels.blocks.types import KvVectors
from baton.kernels.triton_support.launch import Launch

_ELEMENTS = 2_048  # of a program


def convert(to: KvVectors, source: KvVectors) -> None:
    """See the package."""
    convert_launch(to, source).run()


def convert_launch(to: KvVectors, source: KvVectors) -> Launch:
    *sizes, head_dim = to.values.shape
    vectors = to.values[..., 0].numel()
    tile = max(1, _ELEMENTS // padded(head_dim))
    arguments: dict[str, object] = {"vectors": vectors}
    for name, side in (("to", to), ("from", source)):
        dtype = side.values.dtype
        values = side.values.view(torch.uint8) if dtype == torch.float8_e4m3fn else side.values
        # Bits that every device can move: what counts here is memory.
        form = {torch.int8: "int8", torch.float8_e4m3fn: "fp8-bits"}.get(dtype, "plain")
        arguments |= {f"{name}_ptr": values, f"{name}_scales_ptr": side.scales, f"{name}_FORMAT": form}
        scale_strides = (0,) * 5 if side.scales is None else side.scales.stride()
        arguments |= {f"{name}_strides": tuple(values.stride()[:5]), f"{name}_scale_strides": scale_strides}
    constants = {
        "SIZES": tuple(sizes[1:]),
        "LARGEST": CODE_MAX.get(to.values.dtype, 0.0),
        "HEAD_DIM": head_dim,
        "TILE_V": tile,
        "TILE_D": padded(head_dim),
    }
    return Launch(convert_kernel, (triton.cdiv(vectors, tile),), arguments | constants, stages=1)


@triton.jit
def convert_kernel(
    to_ptr,
    to_scales_ptr,
    to_strides,
    to_scale_strides,
    from_ptr,
    from_scales_ptr,
    from_strides,
    from_scale_strides,
    vectors,
    to_FORMAT: tl.constexpr,
    from_FORMAT: tl.constexpr,
    SIZES: tl.constexpr,
    LARGEST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """A program: TILE_V vectors. SIZES: of layers, parts, tokens, heads."""
    vector = tl.program_id(0).to(tl.int64) * TILE_V + tl.arange(0, TILE_V)
    there = vector < vectors
    dims = tl.arange(0, TILE_D)
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    place = _place(vector, from_strides, SIZES)
    values = tl.load(from_ptr + place[:, None] + dims[None, :], mask=mask, other=0)
    exact = decode_codes(values, from_FORMAT, tl.float32)
    if from_FORMAT != "plain":
        if from_FORMAT == "fp8-bits":
            exact = exact * 256.0
        scales = tl.load(from_scales_ptr + _place(vector, from_scale_strides, SIZES), mask=there, other=0.0)
        exact = exact * scales.to(tl.float32)[:, None]
    target = to_ptr + _place(vector, to_strides, SIZES)[:, None] + dims[None, :]
    if to_FORMAT == "plain":
        tl.store(target, exact.to(to_ptr.dtype.element_ty), mask=mask)
    else:
        scales = scales_of(exact, LARGEST)
        tl.store(target, codes_of(exact, scales, to_FORMAT), mask=mask)
        tl.store(to_scales_ptr + _place(vector, to_scale_strides, SIZES), as_bfloat16(scales), mask=there)


@triton.jit
def _place(vector, strides, SIZES: tl.constexpr):
    """Where the vector of this number is: numbers run over heads, tokens, parts, layers, blocks."""
    head = vector % SIZES[3]
    rest = vector // SIZES[3]
    token = rest % SIZES[2]
    rest = rest // SIZES[2]
    part = rest % SIZES[1]
    rest = rest // SIZES[1]
    layer = rest % SIZES[0]
    block = rest // SIZES[0]
    place = block * strides[0] + layer * strides[1] + part * strides[2]
    return place + token * strides[3] + head * strides[4]
