"""Routing, the plan of tiles, and the sum over a token's experts."""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def route_kernel(
    logits_ptr,
    ids_ptr,
    weights_ptr,
    logits_stride,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    TILE_E: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """A program: one token. The best is taken TOP_K times."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, TILE_E)
    there = expert < EXPERTS
    logits = tl.load(logits_ptr + token * logits_stride + expert, mask=there, other=float("-inf"))
    logits = logits.to(tl.float32)
    nan = logits != logits
    best = tl.max(tl.where(nan, float("-inf"), logits), 0)
    well = (tl.abs(best) < float("inf")) & (tl.max(nan.to(tl.int32), 0) == 0)
    logits = tl.where(well | (not there), logits, 0.0)
    base = tl.where(well, best, 0.0)
    shares = tl.where(there, tl.exp(logits - base), 0.0)
    choice = tl.arange(0, TILE_K)
    ids = tl.zeros([TILE_K], tl.int32)
    chosen = tl.zeros([TILE_K], tl.float32)
    left = there
    for place in range(TOP_K):
        most = tl.max(tl.where(left, logits, float("-inf")), 0)
        one = tl.min(tl.where(left & (logits == most), expert, TILE_E), 0)
        left = left & (expert != one)
        ids = tl.where(choice == place, one, ids)
        chosen = tl.where(choice == place, tl.sum(tl.where(expert == one, shares, 0.0), 0), chosen)
    total = tl.sum(chosen, 0) if RENORMALIZE else tl.sum(shares, 0)
    weights = tl.where(well, chosen / total, float("nan"))
    place = token * TOP_K + choice
    tl.store(ids_ptr + place, ids.to(tl.int64), mask=choice < TOP_K)
    tl.store(weights_ptr + place, weights, mask=choice < TOP_K)


@triton.jit
def count_kernel(ids_ptr, counts_ptr, pairs, TILE: tl.constexpr):
    """A program: one expert."""
    expert = tl.program_id(0)
    count = tl.zeros([TILE], tl.int32)
    for begin in range(0, pairs, TILE):
        pair = begin + tl.arange(0, TILE)
        count += (tl.load(ids_ptr + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(count, 0))


@triton.jit
def place_kernel(
    ids_ptr,
    counts_ptr,
    tile_experts_ptr,
    tokens_ptr,
    pairs_ptr,
    pairs,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_E: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program: one expert, whose pairs go into its tiles of ROWS rows, in order."""
    expert = tl.program_id(0)
    every = tl.arange(0, TILE_E)
    counts = tl.load(counts_ptr + every, mask=every < EXPERTS, other=0)
    tiles = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(every < expert, tiles, 0), 0)
    own = tl.sum(tl.where(every == expert, tiles, 0), 0)
    for tile in range(first, first + own):
        tl.store(tile_experts_ptr + tile, expert)
    slot = first * ROWS
    for begin in range(0, pairs, TILE):
        pair = begin + tl.arange(0, TILE)
        mine = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(tokens_ptr + slot + rank - 1, pair // TOP_K, mask=mine)
        tl.store(pairs_ptr + slot + rank - 1, pair, mask=mine)
        slot += tl.sum(mine.to(tl.int32), 0)


@triton.jit
def combine_kernel(y_ptr, weights_ptr, out_ptr, width, TOP_K: tl.constexpr, TILE: tl.constexpr):
    """A program: TILE columns of one token; y is [tokens, TOP_K, width]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < width
    total = tl.zeros([TILE], tl.float32)
    for choice in range(TOP_K):
        pair = token * TOP_K + choice
        y = tl.load(y_ptr + pair * width + column, mask=mask, other=0.0).to(tl.float32)
        total += tl.load(weights_ptr + pair) * y
    tl.store(out_ptr + token * width + column, total.to(out_ptr.dtype.element_ty), mask=mask)
