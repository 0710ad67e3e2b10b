"""Conversations whose steps can be cut in many ways, and digests of what native attention gives for some.

Run as a program (with BATON_CPU_ISA set, say) it prints the digests as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from types import ModuleType

import torch

from baton.kernels import native
from baton.kernels.attention import (
    AttentionParams,
    KvLayer,
    RowSpan,
    SharedPrefix,
    make_plan,
    reference,
    write_kv,
)
from baton.kernels.attention import native as native_attention
from baton.kernels.attention.kv_layer import CODE_MAX

KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn)
FILLS = {"nan": torch.nan, "1e30": 1e30, "random": None}
Cut = Sequence[tuple[int, int, int]]  # a step's rows: (sequence, start, length)


def pool(dtype: torch.dtype, blocks: int, vectors: tuple[int, int, int], fill: float | None = 0.0) -> KvLayer:
    """The middle layer of three. vectors: (block_size, kv_heads, head_dim). fill: what every slot holds (int8
    codes: 1, with this scale); None: noise."""
    shape = (blocks, 3, 2, *vectors)
    values = torch.randn(shape) * 50 if fill is None else torch.full(shape, fill)
    scales = None
    if dtype in CODE_MAX:
        scale = torch.rand(shape[:-1]) if fill is None else torch.full(shape[:-1], fill)
        scales = scale.bfloat16()[:, 1]
    if dtype == torch.int8:
        values = values.nan_to_num(1).clamp(-100, 100)
    return KvLayer(values.to(dtype)[:, 1], scales)


class Talk:
    """Sequences with all their queries, keys and values. Of the first `prefix` positions whole blocks are the
    same in each, and in the same blocks."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        heads: tuple[int, int] = (6, 2),
        head_dim: int = 16,
        block_size: int = 4,
        prefix: int = 0,
        dtype: torch.dtype = torch.float32,
        fill: float | None = torch.nan,
        seed: int = 0,
    ) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.lengths, self.block_size, self.prefix = lengths, block_size, prefix // block_size
        kv = [torch.randn(n, 2, heads[1], head_dim, generator=noise) for n in lengths]
        for own in kv:
            own[: self.prefix * block_size] = kv[0][: self.prefix * block_size]
        self.kv = kv
        self.q = [torch.randn(n, heads[0], head_dim, generator=noise) for n in lengths]
        needed = [-(-n // block_size) for n in lengths]
        ids = (1 + torch.randperm(sum(needed), generator=noise)).tolist()
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        for table in self.tables:
            table[: self.prefix] = self.tables[0][: self.prefix]
        self.layer = pool(dtype, sum(needed) + 1, (block_size, heads[1], head_dim), fill)
        self.params = AttentionParams(head_dim**-0.5)

    def spans(self, rows: Cut) -> list[RowSpan]:
        return [RowSpan(start, length, self.tables[i]) for i, start, length in rows]

    def write(self, rows: Cut) -> None:
        new = [self.kv[i][start : start + length] for i, start, length in rows]
        write_kv(self.layer, torch.cat(new), make_plan(self.spans(rows), self.block_size))

    def run(
        self, cuts: Iterable[Cut], path: ModuleType = native_attention, *, share: bool = False
    ) -> list[torch.Tensor]:
        """Steps one after the other, each writing its KV first; all results by sequence and position."""
        out = [torch.full_like(q, torch.nan) for q in self.q]
        for rows in cuts:
            self.write(rows)
            shared = [SharedPrefix(tuple(range(len(rows))), 0, self.prefix)] if share else []
            plan = make_plan(self.spans(rows), self.block_size, shared=shared)
            q = torch.cat([self.q[i][start : start + length] for i, start, length in rows])
            results = path.attention(q, self.layer, plan, self.params).split([n for _, _, n in rows])
            for (i, start, length), result in zip(rows, results, strict=True):
                out[i][start : start + length] = result
        return out

    def whole(self) -> list[Cut]:
        """Every sequence in one go, all in one step."""
        return [[(i, 0, n) for i, n in enumerate(self.lengths)]]

    def chunks(self, size: int, begin: int = 0) -> list[Cut]:
        """So many tokens of every sequence a step, from position `begin` on."""
        return [
            [(i, at, min(size, n - at)) for i, n in enumerate(self.lengths) if at < n]
            for at in range(begin, max(self.lengths), size)
        ]

    def exact(self, path: ModuleType = native_attention) -> list[torch.Tensor]:
        """fp64 over what the pool holds once `whole` has run, with the rounding that this path does."""
        plan = make_plan(self.spans(self.whole()[0]), self.block_size)
        rounded = rounds(path, self.layer)
        q = torch.cat(self.q).double()
        results = reference.attention(q, self.layer, plan, self.params, rounded=rounded)
        return list(results.split(list(self.lengths)))


def rounds(path: ModuleType, layer: KvLayer) -> bool:
    """Whether it rounds queries and weights over such KV."""
    return path is native_attention and layer.codes.dtype == torch.int8


def assert_near(
    got: torch.Tensor, want: torch.Tensor, layer: KvLayer, path: ModuleType = native_attention
) -> None:
    """To 1e-5; where weights are rounded, a few may be tipped to the next code, whatever the arithmetic."""
    if not rounds(path, layer):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
        return
    assert layer.scales is not None
    apart = (got.double() - want).abs()
    assert apart.isfinite().all()
    assert (apart > 1e-5 + 1e-5 * want.abs()).double().mean() < 0.05
    assert apart.max() <= 2 * layer.scales[:, 1].nan_to_num(0).abs().max()  # two codes of the loudest value


def digests() -> dict[str, str]:
    found = {}
    for dtype in KV_DTYPES:
        for head_dim, window, softcap in ((64, None, None), (40, 33, 5.0), (256, None, None)):
            talk = Talk([700, 90, 1], heads=(9, 3), head_dim=head_dim, block_size=16, dtype=dtype)
            talk.params = AttentionParams(head_dim**-0.5, window, softcap)
            rows = [(0, 0, 600), (1, 0, 90)], [(0, 600, 100), (2, 0, 1)]
            data = b"".join(out.numpy().tobytes() for out in talk.run(rows))
            found[f"{dtype} {head_dim} {window}"] = hashlib.sha256(data).hexdigest()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"isa": native.isa(), "digests": digests()}))
