"""The attention kernel: one program attends with one tile of queries to one range of one row's keys.

Everything that differs between prompt chunks, decode rows, verification rows and shared prefixes is in the
work list (`triton_work`); a program only sees an item of it:

    list_begin   where its list of query tokens begins in `query_tokens`
    row_begin, row_end   its tile rows. Tile row r is query head (r % GROUP) of the item's KV head, of the
                 list's token r // GROUP: a GQA group of any size fills tile rows without gaps
    table        where its row's block ids begin in `tables`
    key_begin, key_end   the positions of the keys it reads. Nothing outside is loaded, so what other slots
                 hold (NaN too) cannot matter
    part         -1: the result is final. Else it goes, with its log-sum-exp, to row part + r // GROUP of the
                 partial results

Which key a query sees is decided by positions alone: key <= position, and with a window key > position -
window. Tiles of many rows run the keys that every row sees without masks, between masked edges.
"""

# What a kernel takes is types of the compiler's own, as many as its launch has.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: PLR0913, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

from baton.kernels.attention.triton_codes import code_scales, decode_codes

ITEM_FIELDS = 8  # of which the last is spare: items then lie on 32 bytes


@triton.jit
def attention_kernel(
    q_ptr,
    codes_ptr,
    scales_ptr,
    out_ptr,
    lse_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    items_ptr,
    query_tokens_ptr,
    positions_ptr,
    tables_ptr,
    q_token_stride,
    q_head_stride,
    code_block_stride,
    code_part_stride,
    code_slot_stride,
    code_head_stride,
    scale_block_stride,
    scale_part_stride,
    scale_slot_stride,
    scale_head_stride,
    score_scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    WITH_LSE: tl.constexpr,
    PRECISION: tl.constexpr,
    Q_DTYPE: tl.constexpr,
    V_DTYPE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
    HAS_INTERIOR: tl.constexpr,
):
    item = items_ptr + tl.program_id(0) * 8
    kv_head = tl.program_id(1)
    list_begin = tl.load(item)
    row_begin = tl.load(item + 1)
    row_end = tl.load(item + 2)
    table_ptr = tables_ptr + tl.load(item + 3)
    key_begin = tl.load(item + 4)
    key_end = tl.load(item + 5)
    part = tl.load(item + 6)

    rows = row_begin + tl.arange(0, TILE_M)
    in_tile = rows < row_end
    dims = tl.arange(0, TILE_D)
    token = tl.load(query_tokens_ptr + list_begin + rows // GROUP, mask=in_tile, other=0)
    position = tl.load(positions_ptr + token, mask=in_tile, other=-1)
    head = kv_head * GROUP + rows % GROUP
    q_offset = token.to(tl.int64) * q_token_stride + head * q_head_stride
    q_mask = in_tile[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_offset[:, None] + dims[None, :], mask=q_mask, other=0.0).to(Q_DTYPE)

    # All strides of the codes are multiples of ALIGN: what the compiler sees by itself only from 16 on.
    keys_ptr = codes_ptr + tl.multiple_of(kv_head * code_head_stride, ALIGN)
    code_part_stride = tl.multiple_of(code_part_stride, ALIGN)
    key_scales_ptr = scales_ptr
    if FORMAT != "plain":
        key_scales_ptr = scales_ptr + kv_head * scale_head_stride

    # The keys that every row of the tile sees: [full_begin, full_end).
    full_begin = key_begin
    full_end = key_begin
    if HAS_INTERIOR:
        full_end = tl.minimum(key_end, tl.min(tl.where(in_tile, position, 2147483646)) + 1)
        if HAS_WINDOW:
            seen_by_all = tl.max(tl.where(in_tile, position, 0)) - window + 1
            edge = tl.cdiv(tl.maximum(seen_by_all - key_begin, 0), TILE_N)
            full_begin = tl.minimum(key_begin + edge * TILE_N, key_end)
        full_end = full_begin + tl.maximum(full_end - full_begin, 0) // TILE_N * TILE_N

    peak = tl.full([TILE_M], float("-inf"), tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    acc = tl.zeros([TILE_M, TILE_D], tl.float32)
    for phase in tl.static_range(3):
        if phase == 0:
            begin = key_begin
            end = full_begin
        elif phase == 1:
            begin = full_begin
            end = full_end
        else:
            begin = full_end
            end = key_end
        # The first phase is the edge of a window, the second the interior.
        if (phase == 2) or (HAS_INTERIOR and (phase == 1 or HAS_WINDOW)):
            acc, total, peak = _attend(
                acc,
                total,
                peak,
                q,
                position,
                keys_ptr,
                key_scales_ptr,
                table_ptr,
                code_block_stride,
                code_part_stride,
                code_slot_stride,
                scale_block_stride,
                scale_part_stride,
                scale_slot_stride,
                begin,
                end,
                key_end,
                score_scale,
                softcap,
                window,
                HEAD_DIM,
                BLOCK_SIZE,
                ALIGN,
                FORMAT,
                HAS_WINDOW,
                HAS_SOFTCAP,
                PRECISION,
                V_DTYPE,
                TILE_N,
                TILE_D,
                phase != 1,
            )

    # A row that saw no key has result 0 and log-sum-exp -inf, the neutral element of a merge.
    divisor = tl.where(total == 0.0, 1.0, total)
    acc = acc / divisor[:, None]
    lse = (peak + tl.log2(divisor)) * 0.6931471805599453
    if part < 0:
        result = (token * HEADS + head).to(tl.int64)
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + result[:, None] * HEAD_DIM + dims[None, :], out, mask=q_mask)
        if WITH_LSE:
            tl.store(lse_ptr + result, lse, mask=in_tile)
    else:
        result = (part + rows // GROUP).to(tl.int64) * HEADS + head
        tl.store(partial_out_ptr + result[:, None] * HEAD_DIM + dims[None, :], acc, mask=q_mask)
        tl.store(partial_lse_ptr + result, lse, mask=in_tile)


@triton.jit
def _attend(
    acc,
    total,
    peak,
    q,
    position,
    keys_ptr,
    key_scales_ptr,
    table_ptr,
    code_block_stride,
    code_part_stride,
    code_slot_stride,
    scale_block_stride,
    scale_part_stride,
    scale_slot_stride,
    begin,
    end,
    key_end,
    score_scale,
    softcap,
    window,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    V_DTYPE: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax (base 2) over the keys [begin, end), the last tile up to key_end where MASKED."""
    dims = tl.arange(0, TILE_D)
    for start in tl.range(begin, end, TILE_N):
        keys = start + tl.arange(0, TILE_N)
        inside = keys < key_end
        if MASKED:
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        else:
            block = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
        in_block = keys % BLOCK_SIZE
        slot = tl.multiple_of(block * code_block_stride + in_block * code_slot_stride, ALIGN)
        code_offset = slot[:, None] + dims[None, :]
        if MASKED:
            mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
        else:
            mask = tl.broadcast_to((dims < HEAD_DIM)[None, :], (TILE_N, TILE_D))
        if MASKED or HEAD_DIM != TILE_D:
            k = tl.load(keys_ptr + code_offset, mask=mask, other=0)
            v = tl.load(keys_ptr + code_part_stride + code_offset, mask=mask, other=0)
        else:
            k = tl.load(keys_ptr + code_offset)
            v = tl.load(keys_ptr + code_part_stride + code_offset)

        k = decode_codes(k, FORMAT, q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * score_scale
        scale_offset = block * scale_block_stride + in_block * scale_slot_stride
        if FORMAT != "plain":
            k_scale = tl.load(key_scales_ptr + scale_offset, mask=inside, other=0.0)
            scores = scores * code_scales(k_scale, FORMAT)[None, :]
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (e**2x + 1), right at both ends; score_scale brings 2 * log2(e) / cap.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if MASKED:
            seen = inside[None, :] & (keys[None, :] <= position[:, None])
            if HAS_WINDOW:
                seen = seen & (keys[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))

        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = new_peak
        if MASKED:
            base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None]
        if FORMAT != "plain":
            v_scale = tl.load(key_scales_ptr + scale_part_stride + scale_offset, mask=inside, other=0.0)
            weights = weights * code_scales(v_scale, FORMAT)[None, :]
        v = decode_codes(v, FORMAT, V_DTYPE)
        acc = tl.dot(weights.to(V_DTYPE), v, acc, input_precision=PRECISION)
        peak = new_peak
    return acc, total, peak
