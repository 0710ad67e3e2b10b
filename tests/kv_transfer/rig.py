"""Nodes to test transports with: a pool, its transport, and the naive copy to compare against."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from baton.kernels.attention.kv_layer import dequantize_kv, quantize_kv, split_records
from baton.kv_transfer.api import Completion, KvTransport, Peer, Pool, Write
from baton.kv_transfer.faulty import Faults, FaultyTransport
from baton.kv_transfer.inproc import InprocTransport
from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.segment import SharedPool
from baton.kv_transfer.shm import ShmTransport
from baton.kv_transfer.tcp.sockets import TcpOptions
from baton.kv_transfer.tcp.transport import TcpTransport
from tests.patience import Patience

DEADLINE_S = 20.0
SMALL = KvLayout(4, 0, 2, 0, 3, 8, "float32", 24)
# 48 blocks of 720 KiB: big enough to be caught half way.
LARGE = KvLayout(16, 0, 30, 0, 3, 64, "float32", 49)


@dataclass
class Node:
    incarnation: str
    layout: KvLayout
    tensor: torch.Tensor
    transport: KvTransport
    shared: SharedPool | None = None
    woken: threading.Event = field(default_factory=threading.Event)
    ended: list[Completion] = field(default_factory=list)

    def peer(self) -> Peer:
        return Peer("target", self.incarnation, self.layout, self.transport.describe())

    def wait(self, count: int, deadline_s: float = DEADLINE_S) -> dict[int, Completion]:
        """Until `count` completions in all came; fails on any second one of a write."""
        self.wait_for(lambda: len(self.ended) >= count, deadline_s)
        return {c.write_id: c for c in self.ended}

    def wait_for(self, true: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
        patience = Patience(deadline_s)
        while not true():
            assert patience.lasts(), f"timed out with {len(self.ended)} completions: {self.ended}"
            self.woken.wait(0.05)
            self.woken.clear()
            self.pull()

    def pull(self) -> None:
        self.ended += self.transport.poll()
        ids = [c.write_id for c in self.ended]
        assert len(ids) == len(set(ids)), "a write ended twice"

    def close(self) -> None:
        self.transport.close()
        if self.shared is not None:
            self.shared.close()


def build(kind: str, incarnation: str, shared: SharedPool | None, options: TcpOptions) -> KvTransport:
    if kind == "inproc":
        return InprocTransport(incarnation)
    if kind == "shm":
        return ShmTransport(shared)
    return TcpTransport(incarnation, options)


@dataclass
class Rig:
    kind: str
    faults: Faults | None = None
    options: TcpOptions = field(default_factory=lambda: TcpOptions(stall_timeout_s=20.0))
    nodes: list[Node] = field(default_factory=list)

    @property
    def fences(self) -> bool:
        return self.kind != "shm"

    def node(self, incarnation: str, layout: KvLayout = SMALL, fill: float | None = None) -> Node:
        """fill: every element; None: random."""
        shared = SharedPool.create(layout.pool_bytes, incarnation) if self.kind == "shm" else None
        dtype = getattr(torch, layout.tensor_dtype)
        tensor = shared.tensor(layout) if shared else torch.zeros(layout.tensor_shape, dtype=dtype)
        if fill is None:
            seed = torch.Generator().manual_seed(hash(incarnation) & 0xFFFF)
            put(vectors_of(tensor, layout), torch.randn(layout.shape, generator=seed))
        else:
            tensor.fill_(fill if tensor.is_floating_point() else int(fill) % 256)
        transport = build(self.kind, incarnation, shared, self.options)
        if self.faults is not None:
            transport = FaultyTransport(transport, self.faults)
        node = Node(incarnation, layout, tensor, transport, shared)
        transport.set_waker(node.woken.set)
        transport.register(Pool(tensor, layout))
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@contextmanager
def rig_of(kind: str, faults: Faults | None = None) -> Iterator[Rig]:
    rig = Rig(kind, faults)
    try:
        yield rig
    finally:
        rig.close()


def write_of(
    write_id: int,
    transfer_id: int,
    src_blocks: Sequence[int],
    dst_blocks: Sequence[int],
    tokens: int | None = None,
    start: int = 0,
    block_size: int = SMALL.block_size,
) -> Write:
    end = len(src_blocks) * block_size if tokens is None else start + tokens
    return Write(write_id, transfer_id, start, end, src_blocks, 0, dst_blocks, 0)


def naive_copy(src: Node, dst: Node, write: Write, into: torch.Tensor) -> None:
    """What `into`, a copy of dst's pool, must look like after the write: token by token, head by head."""
    a, b = src.layout, dst.layout
    here, there = vectors_of(src.tensor, a), vectors_of(into, b)
    for p in range(write.start, write.end):
        sb = write.src_blocks[(p - write.src_first) // a.block_size]
        db = write.dst_blocks[(p - write.dst_first) // b.block_size]
        for layer in range(max(a.layer_start, b.layer_start), min(a.layer_end, b.layer_end)):
            for head in range(max(a.head_start, b.head_start), min(a.head_end, b.head_end)):
                one = here.at(sb, layer - a.layer_start, p % a.block_size, head - a.head_start)
                other = there.at(db, layer - b.layer_start, p % b.block_size, head - b.head_start)
                if a.dtype == b.dtype:
                    for got, given in zip(other, one, strict=True):
                        if got is not None and given is not None:
                            got.copy_(given)
                else:
                    put(other, value_of(one))


class Stored(NamedTuple):
    """Vectors, or codes and their scales, as they lie in a pool."""

    values: torch.Tensor
    scales: torch.Tensor | None

    def at(self, block: int, layer: int, token: int, head: int) -> Stored:
        """Key and value: [2, head_dim]."""
        where = (block, layer, slice(None), token, head)
        return Stored(self.values[where], None if self.scales is None else self.scales[where])


def vectors_of(tensor: torch.Tensor, layout: KvLayout) -> Stored:
    """Views of a pool's memory."""
    if not layout.quantized:
        return Stored(tensor, None)
    _, _, _, *sizes = layout.shape
    return Stored(*split_records(tensor, (sizes[0], sizes[1], sizes[2]), getattr(torch, layout.dtype)))


def value_of(stored: Stored) -> torch.Tensor:
    return stored.values if stored.scales is None else dequantize_kv(stored.values, stored.scales)


def put(into: Stored, values: torch.Tensor) -> None:
    if into.scales is None:
        into.values.copy_(values)
        return
    codes, scales = quantize_kv(values, into.values.dtype)
    into.values.copy_(codes)
    into.scales.copy_(scales)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = {4: torch.int32, 2: torch.int16, 1: torch.int8}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))
