"""Everything about a step's attention that does not depend on the layer: made once, used by each layer.

Rows of one token are grouped by context length and run as one batch per group; longer rows run one by one.
Block ids stay int64 throughout: a pool may have more than 2**31 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Decode rows of up to so many blocks share a group: below it, padding costs less than another group.
_SMALLEST_GROUP_BLOCKS = 8


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

    Entries that no key of the row needs may be anything that names a block, or -1.
    """

    start: int
    length: int
    block_table: Sequence[int]

    @property
    def context(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token. tokens: their indices in the step; blocks: [rows * padded] block ids; bias:
    [rows, 1, 1, padded * block_size], 0 where a key may be seen and -inf elsewhere. A single row has no bias:
    of its blocks' keys it sees all of `seen`."""

    tokens: slice | torch.Tensor
    rows: int
    blocks: torch.Tensor
    bias: torch.Tensor | None
    seen: slice


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row of several tokens. blocks hold positions from `first` on; of them `keys` are in the context.
    mask: [length, keys] True where a query may see a key; None: plain causal from position 0."""

    tokens: slice
    blocks: torch.Tensor
    keys: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillRow, ...]


class AttentionPlan:
    """A step's rows, and what each kind of layer needs to attend over them.

    spans: the rows as given. blocks, offsets, positions: [tokens] int64, where each token's KV goes and which
    position it has.
    """

    def __init__(self, spans: Sequence[RowSpan], block_size: int, dtype: torch.dtype) -> None:
        self.spans = tuple(spans)
        self.block_size = block_size
        self.dtype = dtype
        self._tables = [_table(span, block_size) for span in self.spans]
        positions = _concat([np.arange(span.start, span.context, dtype=np.int64) for span in self.spans])
        blocks = _concat(
            [
                table[np.arange(span.start, span.context) // block_size]
                for span, table in zip(self.spans, self._tables, strict=True)
            ]
        )
        self.positions = torch.from_numpy(positions)
        self.blocks = torch.from_numpy(blocks)
        self.offsets = torch.from_numpy(positions % block_size)
        self.only_slot = (int(blocks[0]), int(positions[0]) % block_size) if len(blocks) == 1 else None
        self._windows: dict[int | None, WindowPlan] = {}

    def window(self, window: int | None) -> WindowPlan:
        """For layers with this sliding window (None: full attention); made once, at its first use."""
        plan = self._windows.get(window)
        if plan is None:
            plan = _Windowed(self.spans, self._tables, self.block_size, window, self.dtype).plan()
            self._windows[window] = plan
        return plan


def make_plan(spans: Sequence[RowSpan], block_size: int, dtype: torch.dtype = torch.float32) -> AttentionPlan:
    """Plan a step. dtype: of queries, keys and values. ValueError: a block table is too short for its row."""
    return AttentionPlan(spans, block_size, dtype)


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """[len(queries), len(keys)] True where the query at one position may see the key at the other.

    A window w shows the query itself and the w - 1 positions before it.
    """
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _table(span: RowSpan, block_size: int) -> np.ndarray:
    needed = -(-span.context // block_size)
    if len(span.block_table) < needed:
        raise ValueError(f"a context of {span.context} needs {needed} blocks, got {len(span.block_table)}")
    # -1 pads like the null block.
    return np.maximum(np.asarray(span.block_table[:needed], dtype=np.int64), 0)


def _concat(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class _Windowed:
    """Builds one WindowPlan."""

    def __init__(
        self,
        spans: Sequence[RowSpan],
        tables: list[np.ndarray],
        block_size: int,
        window: int | None,
        dtype: torch.dtype,
    ) -> None:
        self.spans = spans
        self.tables = tables
        self.block_size = block_size
        self.window = window
        self.dtype = dtype

    def plan(self) -> WindowPlan:
        singles: dict[int, list[tuple[int, int]]] = {}
        prefill: list[PrefillRow] = []
        token = 0
        for row, span in enumerate(self.spans):
            if span.length == 1:
                blocks = len(self.tables[row]) - self._first_block(span)
                bucket = (max(blocks, _SMALLEST_GROUP_BLOCKS) - 1).bit_length()
                singles.setdefault(bucket, []).append((row, token))
            elif span.length > 1:
                prefill.append(self._prefill(row, token))
            token += span.length
        return WindowPlan(tuple(self._group(members) for members in singles.values()), tuple(prefill))

    def _first_block(self, span: RowSpan) -> int:
        """The first block that any of the row's queries can see."""
        if self.window is None:
            return 0
        return max(0, span.start - self.window + 1) // self.block_size

    def _prefill(self, row: int, token: int) -> PrefillRow:
        span = self.spans[row]
        first_block = self._first_block(span)
        first = first_block * self.block_size
        mask = None
        if span.start > 0 or (self.window is not None and self.window < span.length):
            mask = visible(
                torch.arange(span.start, span.context), torch.arange(first, span.context), self.window
            )
        return PrefillRow(
            tokens=slice(token, token + span.length),
            blocks=torch.from_numpy(self.tables[row][first_block:]),
            keys=span.context - first,
            mask=mask,
        )

    def _group(self, members: list[tuple[int, int]]) -> DecodeGroup:
        tables, firsts = [], []
        for row, _ in members:
            first_block = self._first_block(self.spans[row])
            tables.append(self.tables[row][first_block:])
            firsts.append(first_block * self.block_size)
        padded = max(len(table) for table in tables)
        # A row pads with a block of its own: whatever the null block holds, a masked key stays finite.
        blocks = np.stack([np.pad(t, (0, padded - len(t)), constant_values=t[0]) for t in tables])
        keys = np.asarray(firsts)[:, None] + np.arange(padded * self.block_size)[None, :]
        query = np.asarray([self.spans[row].start for row, _ in members])[:, None]
        seen = keys <= query
        if self.window is not None:
            seen &= keys > query - self.window
        bias, first, end = None, 0, padded * self.block_size
        if len(members) == 1:
            first, end = int(seen.argmax()), int(query.item() + 1 - firsts[0])
        else:
            bias = torch.from_numpy(np.where(seen, 0.0, -np.inf)[:, None, None, :]).to(self.dtype)
        return DecodeGroup(
            tokens=_as_slice([token for _, token in members]),
            rows=len(members),
            blocks=torch.from_numpy(blocks.reshape(-1)),
            bias=bias,
            seen=slice(first, end),
        )


def _as_slice(tokens: list[int]) -> slice | torch.Tensor:
    """Consecutive tokens as a slice, which costs no gather."""
    if tokens[-1] - tokens[0] + 1 == len(tokens):
        return slice(tokens[0], tokens[-1] + 1)
    return torch.tensor(tokens)
