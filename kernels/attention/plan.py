"""Everything about a step's attention that does not depend on the layer: made once, used by each layer.

Block ids stay int64 throughout: a pool may have more than 2**31 elements.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from baton.core.batch import SharedPrefix
from baton.kernels.attention.order import order_rows

_FEW = 256


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """scale multiplies the scores. window: a query sees itself and the window - 1 tokens before it. softcap:
    scores become softcap * tanh(score / softcap) (Gemma 2, arXiv:2408.00118)."""

    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class RowSpan:
    """A row's place: its tokens are at positions [start, start + length); block_table: block ids by position.

    Entries that no key of the row needs may be anything that names a block, or -1. array("q") is by far the
    cheapest to plan with.
    """

    start: int
    length: int
    block_table: Sequence[int]

    @property
    def context(self) -> int:
        return self.start + self.length


class AttentionPlan:
    """A step's rows as arrays; numpy int64 unless said otherwise. None is ever changed.

    spans, block_size, dtype, shared: as given to `make_plan`. tokens: how many the step has.
    starts, lengths, first_tokens: [rows] each row's first position, its tokens, and the index in the step of
        the first of them.
    table_starts: [rows] where each row's block table begins in `tables`: block ids, none negative (-1 became
        0, the null block), all tables one after the other, each as far as its row's context goes.
    order, shared_starts, shared_ends: [rows] see `Order`: which neighbours share blocks.
    packed: array("q") of 7 * rows + len(tables): what the seven arrays by row and `tables` are views of, in
        this order.
    places: three array("q") of [tokens]: each token's position, and the block and the offset in it where its
        KV goes; positions, blocks, offsets: the same as torch tensors.
    derived: what a backend derives from the plan at its first use, kept for the step's other layers.
    """

    def __init__(
        self,
        spans: Sequence[RowSpan],
        block_size: int,
        dtype: torch.dtype,
        shared: Sequence[SharedPrefix],
    ) -> None:
        self.spans = tuple(spans)
        self.block_size = block_size
        self.dtype = dtype
        self.shared = tuple(shared)
        self.derived: dict[object, object] = {}
        starts = [span.start for span in self.spans]
        lengths = [span.length for span in self.spans]
        tables = [_table(span, block_size) for span in self.spans]
        order = order_rows(lengths, block_size, self.shared)
        by_row = (starts, lengths, _before(lengths), _before([len(table) for table in tables]), *order)
        self.packed = array("q", list(chain.from_iterable(by_row)))
        for table in tables:
            self.packed.extend(table)
        _clear_negatives(self.packed)
        self.tokens = sum(lengths)
        self.places = self._decode_places() if len(starts) == lengths.count(1) else self._places()

    def _places(self) -> tuple[array[int], array[int], array[int]]:
        positions = np.arange(self.tokens) + np.repeat(self.starts - self.first_tokens, self.lengths)
        tables = np.repeat(self.table_starts, self.lengths)
        blocks, offsets = self.tables[tables + positions // self.block_size], positions % self.block_size
        return array("q", positions.tobytes()), array("q", blocks.tobytes()), array("q", offsets.tobytes())

    def _decode_places(self) -> tuple[array[int], array[int], array[int]]:
        """Of rows of one token."""
        rows, size = len(self.spans), self.block_size
        starts, tables = self.packed[:rows], self.packed[3 * rows : 4 * rows]
        blocks = [
            self.packed[7 * rows + table + start // size] for table, start in zip(tables, starts, strict=True)
        ]
        return starts, array("q", blocks), array("q", [start % size for start in starts])

    def packed_from(self, wanted: Sequence[int]) -> array[int]:
        """`packed` for each row's tokens from the first on that is in `wanted` (indices in the step); rows
        without one have none. For where nothing else is read: prefill's last layer, say."""
        if len(wanted) == self.tokens:
            return self.packed
        packed, rows = self.packed[:], len(self.spans)
        left = iter(sorted(wanted))
        token = next(left, self.tokens)
        for row in range(rows):
            first, end = packed[2 * rows + row], packed[2 * rows + row] + packed[rows + row]
            skipped = min(token, end) - first
            packed[row] += skipped
            packed[rows + row] -= skipped
            packed[2 * rows + row] += skipped
            while token < end:
                token = next(left, self.tokens)
        return packed

    @property
    def only_slot(self) -> tuple[int, int] | None:
        """Where the KV of a step's only token goes: block and offset."""
        return (self.places[1][0], self.places[2][0]) if self.tokens == 1 else None

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, ...]:
        rows = len(self.spans)
        return tuple(np.asarray(self.packed)[: 7 * rows].reshape(7, rows))

    @property
    def starts(self) -> np.ndarray:
        return self._by_row[0]

    @property
    def lengths(self) -> np.ndarray:
        return self._by_row[1]

    @property
    def first_tokens(self) -> np.ndarray:
        return self._by_row[2]

    @property
    def table_starts(self) -> np.ndarray:
        return self._by_row[3]

    @property
    def order(self) -> np.ndarray:
        return self._by_row[4]

    @property
    def shared_starts(self) -> np.ndarray:
        return self._by_row[5]

    @property
    def shared_ends(self) -> np.ndarray:
        return self._by_row[6]

    @cached_property
    def tables(self) -> np.ndarray:
        return np.asarray(self.packed)[7 * len(self.spans) :]

    @cached_property
    def positions(self) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.places[0]))

    @cached_property
    def blocks(self) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.places[1]))

    @cached_property
    def offsets(self) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.places[2]))

    def table(self, row: int) -> np.ndarray:
        """The row's block table, as far as its context goes."""
        begin = int(self.table_starts[row])
        return self.tables[begin : begin + -(-self.spans[row].context // self.block_size)]


def make_plan(
    spans: Sequence[RowSpan],
    block_size: int,
    dtype: torch.dtype = torch.float32,
    shared: Sequence[SharedPrefix] = (),
) -> AttentionPlan:
    """Plan a step. dtype: of queries. shared: blocks that rows have in common, by index in spans.

    ValueError: a block table is too short for its row.
    """
    return AttentionPlan(spans, block_size, dtype, shared)


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """[len(queries), len(keys)] True where the query at one position may see the key at the other.

    A window w shows the query itself and the w - 1 positions before it.
    """
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _before(sizes: Sequence[int]) -> list[int]:
    """For each the sum of those before it."""
    sums, total = [], 0
    for size in sizes:
        sums.append(total)
        total += size
    return sums


def _table(span: RowSpan, block_size: int) -> array[int]:
    """As far as the row's context goes."""
    table, needed = span.block_table, -(-span.context // block_size)
    if len(table) < needed:
        raise ValueError(f"a context of {span.context} needs {needed} blocks, got {len(table)}")
    if len(table) > needed:
        table = table[:needed]
    return table if isinstance(table, array) and table.typecode == "q" else array("q", list(table))


def _clear_negatives(numbers: array[int]) -> None:
    """Few of them without numpy: after a step's kernels no cache holds its code, and its shortest call takes
    several microseconds."""
    if len(numbers) > _FEW:
        view = np.asarray(numbers)
        np.maximum(view, 0, out=view)
    elif min(numbers, default=0) < 0:
        numbers[:] = array("q", [max(number, 0) for number in numbers])
