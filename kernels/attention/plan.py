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

    Entries that no key of the row needs may be anything that names a block, or -1. int64 arrays (array("q"),
    numpy) are the cheapest to plan with.
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
        0, the null block), all tables one after the other.
    order, shared_starts, shared_ends: [rows] see `Order`: which neighbours share blocks.
    packed: [7 * rows + len(tables)] what the seven arrays by row and `tables` are views of, in this order.
    places: three [tokens]: each token's position, and the block and the offset in it where its KV goes;
        positions, blocks, offsets: the same as torch tensors.
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
        sizes = self._table_sizes()
        rows, entries = len(sizes), sum(sizes)
        order = order_rows(lengths, block_size, self.shared)
        self.packed = np.empty(7 * rows + entries, dtype=np.int64)
        by_row = self.packed[: 7 * rows].reshape(7, rows)
        by_row[:] = (starts, lengths, _before(lengths), _before(sizes), *order)
        self.starts, self.lengths, self.first_tokens, self.table_starts = by_row[:4]
        self.order, self.shared_starts, self.shared_ends = by_row[4:]
        self.tables = self.packed[7 * rows :]
        np.maximum(_flat([span.block_table for span in self.spans], entries), 0, out=self.tables)
        self.tokens = sum(lengths)
        self._place()

    def _table_sizes(self) -> list[int]:
        sizes = []
        for span in self.spans:
            needed, size = -(-span.context // self.block_size), len(span.block_table)
            if size < needed:
                raise ValueError(f"a context of {span.context} needs {needed} blocks, got {size}")
            sizes.append(size)
        return sizes

    def _place(self) -> None:
        if self.tokens == len(self.spans) and (self.lengths == 1).all():
            positions, tables = self.starts.copy(), self.table_starts
        else:
            positions = np.arange(self.tokens) + np.repeat(self.starts - self.first_tokens, self.lengths)
            tables = np.repeat(self.table_starts, self.lengths)
        blocks = self.tables[tables + positions // self.block_size]
        offsets = positions % self.block_size
        self.places = (positions, blocks, offsets)
        self.only_slot = (int(blocks[0]), int(offsets[0])) if self.tokens == 1 else None

    @cached_property
    def positions(self) -> torch.Tensor:
        return torch.from_numpy(self.places[0])

    @cached_property
    def blocks(self) -> torch.Tensor:
        return torch.from_numpy(self.places[1])

    @cached_property
    def offsets(self) -> torch.Tensor:
        return torch.from_numpy(self.places[2])

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


def _flat(tables: Sequence[Sequence[int]], entries: int) -> np.ndarray:
    if tables and all(isinstance(table, array | np.ndarray) for table in tables):
        return np.concatenate([np.asarray(table, dtype=np.int64) for table in tables])
    return np.fromiter(chain.from_iterable(tables), np.int64, entries)
