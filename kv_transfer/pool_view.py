"""A pool as arrays: by element for strided copies, as flat bytes for sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from baton.core.errors import FailedPrecondition
from baton.kv_transfer.api import Pool
from baton.kv_transfer.layout import ITEM_BYTES
from baton.kv_transfer.plan import CopyOp

Items = np.ndarray[Any, np.dtype[Any]]

# Same-dtype copies go through numpy as integers: it has no bfloat16, it copies with one thread (torch may
# start its pool of them in ours) and it lets go of the GIL.
_AS_INTEGER = {
    torch.float32: (torch.int32, np.int32),
    torch.bfloat16: (torch.int16, np.int16),
    torch.float16: (torch.int16, np.int16),
}


class PoolView:
    """FailedPrecondition: the tensor is not what the layout says, or not plain contiguous CPU memory."""

    def __init__(self, pool: Pool) -> None:
        layout, tensor = pool.layout, pool.tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != layout.shape or dtype != layout.dtype or dtype not in ITEM_BYTES:
            raise FailedPrecondition(
                f"pool tensor {tuple(tensor.shape)} {dtype} is not the layout's {layout.shape} {layout.dtype}"
            )
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise FailedPrecondition("pool tensor is not contiguous CPU memory")
        self.layout = layout
        self.tensor = tensor.detach()
        self.items: Items = self.tensor.view(_AS_INTEGER[tensor.dtype][0]).numpy()
        self.bytes = self.items.reshape(-1).view(np.uint8).data

    def where(self, block: int, token: int, op: CopyOp) -> tuple[slice, ...]:
        """The op's elements on this side: [blocks, layers, 2, tokens, heads, head_dim]."""
        part, layout = op.part, self.layout
        return (
            slice(block, block + op.blocks),
            slice(part.layer_start - layout.layer_start, part.layer_end - layout.layer_start),
            slice(None),
            slice(token, token + op.tokens),
            slice(part.head_start - layout.head_start, part.head_end - layout.head_start),
        )


def copy(src: PoolView, dst: PoolView, op: CopyOp) -> None:
    """Carry out one op, converting where the dtypes differ (round to nearest, ties to even)."""
    there = dst.where(op.dst_block, op.dst_token, op)
    here = src.where(op.src_block, op.src_token, op)
    if src.tensor.dtype == dst.tensor.dtype:
        dst.items[there] = src.items[here]
    else:
        dst.tensor[there].copy_(src.tensor[here])


def gather(src: PoolView, op: CopyOp, dtype: str, buffer: memoryview) -> None:
    """Pack the op's source elements into `buffer`, as `dtype`."""
    here = src.where(op.src_block, op.src_token, op)
    _wire(op, src.layout.head_dim, dtype, buffer).copy_(src.tensor[here])


def scatter(dst: PoolView, op: CopyOp, dtype: str, buffer: memoryview) -> None:
    """Unpack what `gather` packed into the op's target elements."""
    there = dst.where(op.dst_block, op.dst_token, op)
    dst.tensor[there].copy_(_wire(op, dst.layout.head_dim, dtype, buffer))


def _wire(op: CopyOp, head_dim: int, dtype: str, buffer: memoryview) -> torch.Tensor:
    part = op.part
    shape = (
        op.blocks,
        part.layer_end - part.layer_start,
        2,
        op.tokens,
        part.head_end - part.head_start,
        head_dim,
    )
    kind = getattr(torch, dtype)
    items = np.frombuffer(buffer, dtype=_AS_INTEGER[kind][1]).reshape(shape)
    return torch.from_numpy(items).view(kind)
