"""Where KV vectors lie in a pool, and which pools can exchange them. Pure.

A pool is one array `[num_blocks, layers, 2, block_size, heads, head_dim]` (2: key, value): a block is
contiguous over all its layers, so the common case (equal layouts, whole blocks) is one copy per block, and
a layer's slice of a block, its *record*, is contiguous too. A quantised record is codes, one per element,
then the scales `[2, block_size, heads]`, so they travel together. Layers and heads are half-open *global*
ranges, so ranks that hold a part of them (TP, PP) speak the same language. Block 0 of every pool is the null
block: never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from baton.core.errors import FailedPrecondition

# Each converts to each other one: plain ones with a single, exact rounding (a widening is lossless), into
# quantised ones as if the vectors were written there anew.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
QUANTIZED = frozenset({"int8", "float8_e4m3fn"})
SCALE_BYTES = 2  # bfloat16, one per vector


def vector_bytes(head_dim: int, dtype: str) -> int:
    """One head's key or value of one token, with its scale where there is one."""
    return head_dim * ITEM_BYTES[dtype] + (SCALE_BYTES if dtype in QUANTIZED else 0)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One rank's pool. dtype: torch's name ("float32", "bfloat16", ...)."""

    block_size: int
    layer_start: int
    layer_end: int
    head_start: int
    head_end: int
    head_dim: int
    dtype: str
    num_blocks: int

    @property
    def layers(self) -> int:
        return self.layer_end - self.layer_start

    @property
    def heads(self) -> int:
        return self.head_end - self.head_start

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """Of the vectors, or of their codes."""
        return (self.num_blocks, self.layers, 2, self.block_size, self.heads, self.head_dim)

    @property
    def quantized(self) -> bool:
        return self.dtype in QUANTIZED

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Of the pool as a tensor: `shape`, or bytes by record where codes and scales share the memory."""
        return (self.num_blocks, self.layers, self.record_bytes) if self.quantized else self.shape

    @property
    def tensor_dtype(self) -> str:
        return "uint8" if self.quantized else self.dtype

    @property
    def record_bytes(self) -> int:
        """One layer of one block."""
        return 2 * self.block_size * self.heads * vector_bytes(self.head_dim, self.dtype)

    @property
    def block_bytes(self) -> int:
        return self.layers * self.record_bytes

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of the model's KV: global layers x global heads, half-open."""

    layer_start: int
    layer_end: int
    head_start: int
    head_end: int

    @property
    def empty(self) -> bool:
        return self.layer_end <= self.layer_start or self.head_end <= self.head_start

    def meet(self, other: Part | KvLayout) -> Part:
        """What both hold (perhaps empty)."""
        return Part(
            max(self.layer_start, other.layer_start),
            min(self.layer_end, other.layer_end),
            max(self.head_start, other.head_start),
            min(self.head_end, other.head_end),
        )


def part_of(layout: KvLayout) -> Part:
    return Part(layout.layer_start, layout.layer_end, layout.head_start, layout.head_end)


def compatible(src: KvLayout, dst: KvLayout) -> list[str]:
    """The items in which the two differ beyond conversion, each with both values; empty: they can pair."""
    problems = []
    if src.head_dim != dst.head_dim:
        problems.append(f"head_dim: {src.head_dim} here, {dst.head_dim} there")
    for name, a, b in (
        ("layers", (src.layer_start, src.layer_end), (dst.layer_start, dst.layer_end)),
        ("kv heads", (src.head_start, src.head_end), (dst.head_start, dst.head_end)),
    ):
        if min(a[1], b[1]) <= max(a[0], b[0]):
            problems.append(f"{name}: [{a[0]}, {a[1]}) here and [{b[0]}, {b[1]}) there have none in common")
    for side, layout in (("here", src), ("there", dst)):
        if layout.dtype not in ITEM_BYTES:
            problems.append(f"dtype: {layout.dtype!r} {side} is not one of {', '.join(ITEM_BYTES)}")
        if layout.block_size < 1 or layout.head_dim < 1 or layout.num_blocks < 1:
            problems.append(f"shape: {layout.shape} {side} is empty")
    return problems


def shares(sources: Sequence[KvLayout], dst: KvLayout) -> list[list[Part]]:
    """Which part of `dst` each source rank writes: every (layer, head) of `dst` in exactly one share.

    Ranks may hold the same heads (fewer KV heads than TP ranks); the first that holds a part writes it.
    Returns one list of disjoint parts per source. FailedPrecondition: nobody holds some of it (named).
    """
    left = [part_of(dst)]
    result: list[list[Part]] = []
    for source in sources:
        result.append([met for part in left if not (met := part.meet(source)).empty])
        left = [rest for part in left for rest in _minus(part, part.meet(source))]
    if left:
        gaps = "; ".join(f"layers [{p.layer_start}, {p.layer_end})" + _heads(p) for p in left)
        raise FailedPrecondition(f"no source rank holds {gaps}")
    return result


def _heads(part: Part) -> str:
    return f" x kv heads [{part.head_start}, {part.head_end})"


def _minus(part: Part, hole: Part) -> Iterator[Part]:
    """`part` without `hole` (which lies inside it or is empty), as disjoint rectangles."""
    if hole.empty:
        yield part
        return
    yield from _nonempty(
        (
            Part(part.layer_start, hole.layer_start, part.head_start, part.head_end),
            Part(hole.layer_end, part.layer_end, part.head_start, part.head_end),
            Part(hole.layer_start, hole.layer_end, part.head_start, hole.head_start),
            Part(hole.layer_start, hole.layer_end, hole.head_end, part.head_end),
        )
    )


def _nonempty(parts: Iterable[Part]) -> Iterator[Part]:
    return (part for part in parts if not part.empty)
