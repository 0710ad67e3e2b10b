"""A step over a pool whose other slots are poisoned, and what attention must come to, from fp64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.kernels.attention import (
    AttentionParams,
    KvLayer,
    RowSpan,
    SharedPrefix,
    make_plan,
    reference,
    triton,
    write_kv,
)

QUANTIZED = (torch.int8, torch.float8_e4m3fn)


class Scene:
    """rows: (start, length). shared: blocks that rows have in common, as make_plan takes them."""

    def __init__(
        self,
        rows: Sequence[tuple[int, int]],
        heads: tuple[int, int] = (6, 2),
        head_dim: int = 16,
        block_size: int = 4,
        *,
        shared: Sequence[SharedPrefix] = (),
        kv_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.noise = torch.Generator().manual_seed(seed)
        self.block_size, self.kv_heads = block_size, heads[1]
        self.spans = self._spans(rows, shared)
        self.plan = make_plan(self.spans, block_size, shared=shared)
        self.plain = make_plan(self.spans, block_size)
        self.layer = self._layer(head_dim, kv_dtype)
        whole = make_plan([RowSpan(0, s.context, s.block_table) for s in self.spans], block_size)
        write_kv(self.layer, self.randn(whole.tokens, 2, heads[1], head_dim), whole)
        self.q = self.randn(self.plan.tokens, heads[0], head_dim)

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.noise)

    def _spans(self, rows: Sequence[tuple[int, int]], shared: Sequence[SharedPrefix]) -> list[RowSpan]:
        needed = [-(-(start + length) // self.block_size) for start, length in rows]
        self.blocks = sum(needed) + 3
        ids = (1 + torch.randperm(self.blocks - 1, generator=self.noise)).tolist()
        tables = [[ids.pop() for _ in range(count)] for count in needed]
        for group in shared:
            common = slice(group.start_block, group.end_block)
            for row in group.rows[1:]:
                tables[row][common] = tables[group.rows[0]][common]
        return [RowSpan(*row, [*table, -1, 0]) for row, table in zip(rows, tables, strict=True)]

    def _layer(self, head_dim: int, dtype: torch.dtype) -> KvLayer:
        """The middle one of three layers, all NaN (int8 has none: then all ones, with NaN scales)."""
        codes = torch.full((self.blocks, 3, 2, self.block_size, self.kv_heads, head_dim), torch.nan)
        codes = torch.ones_like(codes).to(dtype) if dtype == torch.int8 else codes.to(dtype)
        scales = None
        if dtype in QUANTIZED:
            scales = torch.full(codes.shape[:-1], torch.nan, dtype=torch.bfloat16)[:, 1]
        return KvLayer(codes[:, 1], scales)

    def check(
        self, window: int | None = None, softcap: float | None = None, *, atol: float = 1e-5
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The kernel's result, which is close to that of fp64 over the same pool, with nothing shared."""
        params = AttentionParams(self.q.shape[-1] ** -0.5, window, softcap)
        out, lse = triton.attention_lse(self.q, self.layer, self.plan, params)
        want, want_lse = reference.attention_lse(self.q.double(), self.layer, self.plain, params)
        assert out.dtype == self.q.dtype
        torch.testing.assert_close(out.double(), want, atol=atol, rtol=0)
        torch.testing.assert_close(lse.double(), want_lse.double(), atol=atol, rtol=0)
        return out, lse
