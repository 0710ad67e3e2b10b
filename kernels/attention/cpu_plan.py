"""How torch's fused CPU kernel takes a step: rows of one token in padded groups, longer rows one by one.

Rows of one token are grouped by context length and run as one batch per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from baton.kernels.attention.plan import AttentionPlan, RowSpan, visible

# Decode rows of up to so many blocks share a group: below it, padding costs less than another group.
_SMALLEST_GROUP_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token. tokens: their indices in the step; blocks: [rows * padded] block ids; bias:
    [rows, 1, 1, padded * block_size], 0 where a key may be seen and -inf elsewhere; unseen: indices of the
    latter in [rows * padded * block_size]. A single row has neither: of its blocks' keys it sees all of
    `seen`."""

    tokens: slice | torch.Tensor
    rows: int
    blocks: torch.Tensor
    bias: torch.Tensor | None
    unseen: torch.Tensor | None
    seen: slice


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row of several tokens. blocks hold positions from `first` on; of them `keys` are in the context.
    mask: [length, keys] True where a query may see a key; None: plain causal from position 0."""

    tokens: slice
    blocks: torch.Tensor
    keys: slice
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillRow, ...]


def window_plan(plan: AttentionPlan, window: int | None) -> WindowPlan:
    """For layers with this sliding window (None: full attention); made once per step, at its first use."""
    found = plan.derived.get((WindowPlan, window))
    if not isinstance(found, WindowPlan):
        found = plan.derived[WindowPlan, window] = _Windowed(plan, window).plan()
    return found


class _Windowed:
    """Builds one WindowPlan."""

    def __init__(self, plan: AttentionPlan, window: int | None) -> None:
        self.spans: Sequence[RowSpan] = plan.spans
        self.tables = [plan.table(row) for row in range(len(plan.spans))]
        self.block_size = plan.block_size
        self.window = window
        self.dtype = plan.dtype

    def plan(self) -> WindowPlan:
        singles: dict[int, list[tuple[int, int]]] = {}
        prefill: list[PrefillRow] = []
        token = 0
        for row, span in enumerate(self.spans):
            if span.length == 1:
                blocks = len(self.tables[row]) - self._first_key(span) // self.block_size
                bucket = (max(blocks, _SMALLEST_GROUP_BLOCKS) - 1).bit_length()
                singles.setdefault(bucket, []).append((row, token))
            elif span.length > 1:
                prefill.append(self._prefill(row, token))
            token += span.length
        return WindowPlan(tuple(self._group(members) for members in singles.values()), tuple(prefill))

    def _first_key(self, span: RowSpan) -> int:
        """The first position that any of the row's queries can see."""
        return 0 if self.window is None else max(0, span.start - self.window + 1)

    def _prefill(self, row: int, token: int) -> PrefillRow:
        span = self.spans[row]
        first = self._first_key(span)
        first_block, before = divmod(first, self.block_size)
        mask = None
        if span.start > 0 or (self.window is not None and self.window < span.length):
            mask = visible(
                torch.arange(span.start, span.context), torch.arange(first, span.context), self.window
            )
        return PrefillRow(
            tokens=slice(token, token + span.length),
            blocks=torch.from_numpy(self.tables[row][first_block:]),
            keys=slice(before, before + span.context - first),
            mask=mask,
        )

    def _group(self, members: list[tuple[int, int]]) -> DecodeGroup:
        tables, firsts = [], []
        for row, _ in members:
            first_block = self._first_key(self.spans[row]) // self.block_size
            tables.append(self.tables[row][first_block:])
            firsts.append(first_block * self.block_size)
        padded = max(len(table) for table in tables)
        # A row pads with a block of its own: one that may be read, whatever the null block is.
        blocks = np.stack([np.pad(t, (0, padded - len(t)), constant_values=t[0]) for t in tables])
        keys = np.asarray(firsts)[:, None] + np.arange(padded * self.block_size)[None, :]
        query = np.asarray([self.spans[row].start for row, _ in members])[:, None]
        seen = keys <= query
        if self.window is not None:
            seen &= keys > query - self.window
        bias, unseen, first, end = None, None, 0, padded * self.block_size
        if len(members) == 1:
            first, end = int(seen.argmax()), int(query.item() + 1 - firsts[0])
        else:
            bias = torch.from_numpy(np.where(seen, 0.0, -np.inf)[:, None, None, :]).to(self.dtype)
            unseen = torch.from_numpy(np.flatnonzero(~seen))
        return DecodeGroup(
            tokens=_as_slice([token for _, token in members]),
            rows=len(members),
            blocks=torch.from_numpy(blocks.reshape(-1)),
            bias=bias,
            unseen=unseen,
            seen=slice(first, end),
        )


def _as_slice(tokens: list[int]) -> slice | torch.Tensor:
    """Consecutive tokens as a slice, which costs no gather."""
    if tokens[-1] - tokens[0] + 1 == len(tokens):
        return slice(tokens[0], tokens[-1] + 1)
    return torch.tensor(tokens)
