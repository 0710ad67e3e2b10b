"""The bytes on the wire: a fixed header, then `length` bytes of payload. Everything is checked on decoding.

    source                                   target
    HELLO (json: incarnations, layout)  ->
                                        <-   WELCOME (json: error or none)
    DATA (place, payload) ...           ->   payload goes into the pool, or is read and dropped
    END (bytes sent, or cancelled)      ->
                                        <-   DONE (applied, cancelled, or refused and why)

A payload is laid out as a pool that held nothing but its blocks, layers, tokens and heads would be: where it
is quantised, a record (codes, then scales) for each block and layer.

A connection carries the writes of one source incarnation to one target incarnation, so frames need not repeat
them. Frames of a write follow one another; its END is the last of them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from baton.kv_transfer.layout import ITEM_BYTES, KvLayout, Part, vector_bytes
from baton.kv_transfer.plan import CopyOp, op_bytes

MAGIC = b"BTKV"
VERSION = 1
# Most payload in one frame, unless one token of one layer is larger. Also how soon a cancel is seen.
FRAME_BYTES = 1 << 20
TEXT_BYTES = 4096  # most in a HELLO, WELCOME or DONE
DTYPES = tuple(ITEM_BYTES)

# magic, version, kind, status, dtype; write, transfer, payload length, bytes of the whole write;
# block, blocks, token, tokens; layer range, head range
_HEADER = struct.Struct("!4sBBBBQQQQIIIIHHHH")
HEADER_BYTES = _HEADER.size


class ProtocolError(Exception):
    """The other side sent what no correct peer sends. The connection is of no further use."""


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    DATA = 3
    END = 4
    DONE = 5


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    REFUSED = 2


class Place(NamedTuple):
    """Where a DATA payload lands: the target's half of a CopyOp."""

    block: int = 0
    blocks: int = 0
    token: int = 0
    tokens: int = 0
    layer_start: int = 0
    layer_end: int = 0
    head_start: int = 0
    head_end: int = 0


class Frame(NamedTuple):
    kind: int
    write_id: int = 0
    transfer_id: int = 0
    length: int = 0
    total: int = 0
    status: int = 0
    dtype: int = 0
    place: Place = Place()

    def encode(self) -> bytes:
        """struct.error: a number is out of range."""
        return _HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.status,
            self.dtype,
            self.write_id,
            self.transfer_id,
            self.length,
            self.total,
            *self.place,
        )


def decode(header: bytes | bytearray | memoryview) -> Frame:
    magic, version, kind, status, dtype, write_id, transfer_id, length, total, *place = _HEADER.unpack(header)
    if magic != MAGIC:
        raise ProtocolError(f"not this protocol: starts with {bytes(magic)!r}")
    if version != VERSION:
        raise ProtocolError(f"protocol version {version}, not {VERSION}")
    if kind not in _KINDS:
        raise ProtocolError(f"unknown kind of frame {kind}")
    if kind != Kind.DATA and length > TEXT_BYTES:
        raise ProtocolError(f"{length} bytes of text in a frame of kind {kind}")
    return Frame(kind, write_id, transfer_id, length, total, status, dtype, Place(*place))


_KINDS = frozenset(Kind)


def data_frame(write_id: int, transfer_id: int, op: CopyOp, dtype: str, length: int) -> Frame:
    part = op.part
    place = Place(
        op.dst_block,
        op.blocks,
        op.dst_token,
        op.tokens,
        part.layer_start,
        part.layer_end,
        part.head_start,
        part.head_end,
    )
    return Frame(Kind.DATA, write_id, transfer_id, length, dtype=DTYPES.index(dtype), place=place)


def least_bytes(layout: KvLayout) -> int:
    """One token of one layer in the widest dtype: what a source cannot split any further."""
    return 2 * layout.heads * max(vector_bytes(layout.head_dim, dtype) for dtype in DTYPES)


def checked_op(frame: Frame, layout: KvLayout) -> tuple[CopyOp, str]:
    """A DATA frame's op on a pool of `layout`, and its payload's dtype, after checking that every element
    lies inside and that the length is exactly theirs. The op's source half means nothing."""
    p = frame.place
    if frame.dtype >= len(DTYPES):
        raise ProtocolError(f"unknown dtype {frame.dtype}")
    inside = (
        p.blocks >= 1
        and p.block >= 1
        and p.block + p.blocks <= layout.num_blocks
        and p.tokens >= 1
        and p.token + p.tokens <= layout.block_size
        and layout.layer_start <= p.layer_start < p.layer_end <= layout.layer_end
        and layout.head_start <= p.head_start < p.head_end <= layout.head_end
    )
    if not inside:
        raise ProtocolError(f"{p} is not inside the pool")
    op = CopyOp(
        0,
        0,
        p.block,
        p.token,
        p.tokens,
        Part(p.layer_start, p.layer_end, p.head_start, p.head_end),
        p.blocks,
    )
    dtype = DTYPES[frame.dtype]
    if frame.length != op_bytes(op, layout, dtype):
        raise ProtocolError(f"{frame.length} bytes for {p} of {dtype}")
    return op, dtype
