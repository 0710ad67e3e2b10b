"""Joining partial attention results on GPUs: two given ones, or as many as a step's cutting left."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import torch
import triton
import triton.language as tl

from baton.kernels.triton_support.launch import Launch

# (token, head) pairs of a program of merge_states, and parts that merge_parts takes at once.
_PAIRS = 4
_PARTS = 8


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package; everything contiguous, lse in fp32."""
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    merge_states_launch((out_a, lse_a), (out_b, lse_b), (out, lse)).run()
    return out, lse


State = tuple[torch.Tensor, torch.Tensor]


def merge_states_launch(a: State, b: State, merged: State) -> Launch:
    pairs, head_dim = merged[1].numel(), merged[0].shape[-1]
    arguments = {
        "out_a_ptr": a[0],
        "lse_a_ptr": a[1],
        "out_b_ptr": b[0],
        "lse_b_ptr": b[1],
        "out_ptr": merged[0],
        "lse_ptr": merged[1],
        "pairs": pairs,
        "HEAD_DIM": head_dim,
        "TILE_P": _PAIRS,
        "TILE_D": triton.next_power_of_2(head_dim),
    }
    return Launch(merge_states_kernel, (triton.cdiv(pairs, _PAIRS),), arguments, warps=2)


def merge_parts_launch(parts: State, table: State, merged: State, *, with_lse: bool) -> Launch:
    """parts: out [rows, heads, head_dim] fp32 and lse [rows, heads] fp32, of which only the rows named are
    read. table: [tokens, 3] int32 (token, begin, end) and [n] int32 rows, of which [begin, end) are the
    token's parts. merged: where tokens' results go, [*, heads, head_dim] and [*, heads]."""
    heads, head_dim = merged[0].shape[1:]
    arguments = {
        "part_out_ptr": parts[0],
        "part_lse_ptr": parts[1],
        "merges_ptr": table[0],
        "rows_ptr": table[1],
        "out_ptr": merged[0],
        "lse_ptr": merged[1],
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "WITH_LSE": with_lse,
        "TILE_P": _PARTS,
        "TILE_D": triton.next_power_of_2(head_dim),
    }
    return Launch(merge_parts_kernel, (len(table[0]), heads), arguments, warps=2)


@triton.jit
def _emptied(lse):
    """Some kernels say "no key" with +inf; here all do with -inf."""
    return tl.where(lse == float("inf"), float("-inf"), lse)


@triton.jit
def merge_states_kernel(
    out_a_ptr,
    lse_a_ptr,
    out_b_ptr,
    lse_b_ptr,
    out_ptr,
    lse_ptr,
    pairs,
    HEAD_DIM: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_D: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64) * TILE_P + tl.arange(0, TILE_P)
    dims = tl.arange(0, TILE_D)
    there = pair < pairs
    mask = there[:, None] & (dims < HEAD_DIM)[None, :]
    place = pair[:, None] * HEAD_DIM + dims[None, :]
    a = _emptied(tl.load(lse_a_ptr + pair, mask=there, other=float("-inf")))
    b = _emptied(tl.load(lse_b_ptr + pair, mask=there, other=float("-inf")))
    peak = tl.maximum(a, b)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weight_a = tl.exp(a - base)
    weight_b = tl.exp(b - base)
    total = weight_a + weight_b
    # What an empty part holds is not looked at.
    out_a = tl.load(out_a_ptr + place, mask=mask & (weight_a != 0.0)[:, None], other=0.0).to(tl.float32)
    out_b = tl.load(out_b_ptr + place, mask=mask & (weight_b != 0.0)[:, None], other=0.0).to(tl.float32)
    out = out_a * weight_a[:, None] + out_b * weight_b[:, None]
    divisor = tl.where(total == 0.0, 1.0, total)
    out = out / divisor[:, None]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + pair, peak + tl.log(divisor), mask=there)


@triton.jit
def merge_parts_kernel(
    part_out_ptr,
    part_lse_ptr,
    merges_ptr,
    rows_ptr,
    out_ptr,
    lse_ptr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WITH_LSE: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """A program: one head of one token, TILE_P parts at a time, so that loads do not wait for one another."""
    merge = merges_ptr + tl.program_id(0) * 3
    head = tl.program_id(1)
    token = tl.load(merge).to(tl.int64)
    begin = tl.load(merge + 1)
    end = tl.load(merge + 2)
    dims = tl.arange(0, TILE_D)
    inside = dims < HEAD_DIM
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    acc = tl.zeros([TILE_D], tl.float32)
    for start in range(begin, end, TILE_P):
        index = start + tl.arange(0, TILE_P)
        there = index < end
        row = tl.load(rows_ptr + index, mask=there, other=0).to(tl.int64) * HEADS + head
        part_lse = tl.load(part_lse_ptr + row, mask=there, other=float("-inf"))
        mask = there[:, None] & inside[None, :]
        part_out = tl.load(part_out_ptr + row[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        new_peak = tl.maximum(peak, tl.max(part_lse, 0))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp(part_lse - base)
        fade = tl.exp(peak - base)
        total = total * fade + tl.sum(weights, 0)
        acc = acc * fade + tl.sum(weights[:, None] * part_out, 0)
        peak = new_peak
    result = token * HEADS + head
    divisor = tl.where(total == 0.0, 1.0, total)
    out = acc / divisor
    tl.store(out_ptr + result * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty), mask=inside)
    if WITH_LSE:
        tl.store(lse_ptr + result, peak + tl.log(divisor))
