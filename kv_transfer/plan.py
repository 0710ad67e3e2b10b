"""Which copies bring a span of tokens from one pool into another of perhaps unequal layout. Pure.

Positions decide where a token lands, never counts: position p lies in the block that covers p, on either
side, whatever was or was not sent before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from baton.kv_transfer.layout import KvLayout, Part, part_of, vector_bytes
from baton.kv_transfer.writes import Write


@dataclass(frozen=True, slots=True)
class CopyOp:
    """A strided copy: `tokens` tokens of each of `blocks` consecutive blocks, layers and heads of `part`.

    More than one block only where both sides are whole blocks of equal size.
    """

    src_block: int
    src_token: int
    dst_block: int
    dst_token: int
    tokens: int
    part: Part
    blocks: int = 1


def plan(src: KvLayout, dst: KvLayout, write: Write) -> list[CopyOp]:
    """The copies that carry out `write`, in order of position; runs of whole consecutive blocks are merged.

    ValueError: the write does not fit the layouts (misaligned, not enough blocks, a block out of range).
    """
    _check(write, "src", src, write.src_blocks, write.src_first)
    _check(write, "dst", dst, write.dst_blocks, write.dst_first)
    part = part_of(src).meet(dst)
    if write.part is not None:
        part = part.meet(write.part)
    ops: list[CopyOp] = []
    if part.empty:
        return ops
    position = write.start
    while position < write.end:
        src_index, src_token = divmod(position - write.src_first, src.block_size)
        dst_index, dst_token = divmod(position - write.dst_first, dst.block_size)
        tokens = min(write.end - position, src.block_size - src_token, dst.block_size - dst_token)
        op = CopyOp(
            write.src_blocks[src_index], src_token, write.dst_blocks[dst_index], dst_token, tokens, part
        )
        if ops and tokens == src.block_size == dst.block_size and _continues(ops[-1], op):
            ops[-1] = replace(ops[-1], blocks=ops[-1].blocks + 1)
        else:
            ops.append(op)
        position += tokens
    return ops


def _check(write: Write, side: str, layout: KvLayout, blocks: Sequence[int], first: int) -> None:
    if not 0 <= write.start <= write.end:
        raise ValueError(f"tokens [{write.start}, {write.end}) are no range")
    if write.start == write.end:
        return
    if first % layout.block_size:
        raise ValueError(f"{side}_first {first} is not a multiple of block size {layout.block_size}")
    covered = first + len(blocks) * layout.block_size
    if write.start < first or write.end > covered:
        raise ValueError(
            f"{side}_blocks cover positions [{first}, {covered}), not [{write.start}, {write.end})"
        )
    used = blocks[(write.start - first) // layout.block_size : -(-(write.end - first) // layout.block_size)]
    if min(used) < 1 or max(used) >= layout.num_blocks:
        raise ValueError(f"{side}_blocks {list(used)} are not all in [1, {layout.num_blocks})")


def _continues(last: CopyOp, op: CopyOp) -> bool:
    return (
        last.tokens == op.tokens
        and op.src_block == last.src_block + last.blocks
        and op.dst_block == last.dst_block + last.blocks
    )


def op_bytes(op: CopyOp, layout: KvLayout, dtype: str) -> int:
    """Payload of `op` in `dtype`, scales included; `layout` is either side's (they agree on head_dim)."""
    return op.blocks * op.tokens * _token_bytes(op.part, layout, dtype)


def _token_bytes(part: Part, layout: KvLayout, dtype: str) -> int:
    vectors = 2 * (part.layer_end - part.layer_start) * (part.head_end - part.head_start)
    return vectors * vector_bytes(layout.head_dim, dtype)


def split(op: CopyOp, layout: KvLayout, dtype: str, limit_bytes: int) -> Iterator[CopyOp]:
    """`op` in pieces of at most `limit_bytes` payload: by blocks, then layers, then tokens.

    In that order because whole layers of a block are still contiguous. The least piece is one token of one
    layer, which may exceed the limit.
    """
    if op_bytes(op, layout, dtype) <= limit_bytes:
        yield op
        return
    block_bytes = op_bytes(replace(op, blocks=1), layout, dtype)
    if op.blocks > 1:
        step = max(1, limit_bytes // block_bytes)
        for i in range(0, op.blocks, step):
            piece = replace(
                op,
                src_block=op.src_block + i,
                dst_block=op.dst_block + i,
                blocks=min(step, op.blocks - i),
            )
            yield from split(piece, layout, dtype, limit_bytes)
        return
    yield from _split_block(op, block_bytes, limit_bytes)


def _split_block(op: CopyOp, block_bytes: int, limit_bytes: int) -> Iterator[CopyOp]:
    start, end = op.part.layer_start, op.part.layer_end
    layer_bytes = block_bytes // (end - start)
    layer_step = max(1, limit_bytes // layer_bytes)
    token_step = op.tokens if layer_bytes <= limit_bytes else max(1, limit_bytes * op.tokens // layer_bytes)
    for layer in range(start, end, layer_step):
        part = replace(op.part, layer_start=layer, layer_end=min(layer + layer_step, end))
        for token in range(0, op.tokens, token_step):
            yield replace(
                op,
                src_token=op.src_token + token,
                dst_token=op.dst_token + token,
                tokens=min(token_step, op.tokens - token),
                part=part,
            )


def extent(layout: KvLayout, block: int, op: CopyOp) -> tuple[int, int] | None:
    """(offset, length) in bytes of the op's elements in a pool, starting at `block`; None: not contiguous."""
    part = op.part
    whole_rows = op.tokens == layout.block_size and part.head_end - part.head_start == layout.heads
    whole_blocks = part.layer_end - part.layer_start == layout.layers
    if not whole_rows or (op.blocks > 1 and not whole_blocks):
        return None
    offset = block * layout.block_bytes + (part.layer_start - layout.layer_start) * layout.record_bytes
    return offset, op.blocks * (part.layer_end - part.layer_start) * layout.record_bytes
