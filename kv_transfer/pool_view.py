"""A pool as arrays: by vector for strided copies, as flat bytes for sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from baton.core.errors import FailedPrecondition
from baton.kernels.attention.kv_layer import split_records
from baton.kv_transfer.api import Pool
from baton.kv_transfer.convert import Vectors, assign
from baton.kv_transfer.layout import ITEM_BYTES, QUANTIZED
from baton.kv_transfer.plan import CopyOp


class PoolView:
    """FailedPrecondition: the tensor is not what the layout says, or not plain contiguous CPU memory."""

    def __init__(self, pool: Pool) -> None:
        layout, tensor = pool.layout, pool.tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        known = layout.dtype in ITEM_BYTES
        if not known or tuple(tensor.shape) != layout.tensor_shape or dtype != layout.tensor_dtype:
            raise FailedPrecondition(
                f"pool tensor {tuple(tensor.shape)} {dtype} is not the layout's {layout.shape} {layout.dtype}"
            )
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise FailedPrecondition("pool tensor is not contiguous CPU memory")
        self.layout = layout
        self.tensor = tensor.detach()
        self.bytes = self.tensor.view(-1).view(torch.uint8).numpy().data
        self._vectors = _vectors(self.tensor, layout.shape, layout.dtype)

    def where(self, block: int, token: int, op: CopyOp) -> Vectors:
        """The op's vectors on this side: [blocks, layers, 2, tokens, heads, head_dim]."""
        part, layout = op.part, self.layout
        return self._vectors[
            block : block + op.blocks,
            part.layer_start - layout.layer_start : part.layer_end - layout.layer_start,
            :,
            token : token + op.tokens,
            part.head_start - layout.head_start : part.head_end - layout.head_start,
        ]


def copy(src: PoolView, dst: PoolView, op: CopyOp) -> None:
    """Carry out one op, converting where the dtypes differ (see `convert`)."""
    assign(dst.where(op.dst_block, op.dst_token, op), src.where(op.src_block, op.src_token, op))


def gather(src: PoolView, op: CopyOp, dtype: str, buffer: memoryview) -> None:
    """Pack the op's source vectors into `buffer`, as `dtype`."""
    assign(_wire(op, src.layout.head_dim, dtype, buffer), src.where(op.src_block, op.src_token, op))


def scatter(dst: PoolView, op: CopyOp, dtype: str, buffer: memoryview) -> None:
    """Unpack what `gather` packed into the op's target vectors."""
    assign(dst.where(op.dst_block, op.dst_token, op), _wire(op, dst.layout.head_dim, dtype, buffer))


def _wire(op: CopyOp, head_dim: int, dtype: str, buffer: memoryview) -> Vectors:
    """A buffer as a pool that holds the op's vectors and nothing else."""
    part = op.part
    layers, heads = part.layer_end - part.layer_start, part.head_end - part.head_start
    raw: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(buffer, dtype=np.uint8)
    return _vectors(torch.from_numpy(raw), (op.blocks, layers, 2, op.tokens, heads, head_dim), dtype)


def _vectors(memory: torch.Tensor, shape: tuple[int, int, int, int, int, int], dtype: str) -> Vectors:
    kind = getattr(torch, dtype)
    flat = memory.view(-1).view(torch.uint8)
    if dtype not in QUANTIZED:
        return Vectors.of(flat.view(kind).view(shape))
    blocks, layers, _, tokens, heads, head_dim = shape
    return Vectors.of(*split_records(flat.view(blocks, layers, -1), (tokens, heads, head_dim), kind))
