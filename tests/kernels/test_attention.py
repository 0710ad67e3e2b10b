"""Native and torch attention and the readable reference against dense attention in fp64."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Sequence

import pytest
import torch

from baton.kernels import native
from baton.kernels.attention import (
    AttentionParams,
    KvLayer,
    RowSpan,
    cpu,
    make_plan,
    reference,
    write_kv,
)
from baton.kernels.attention import native as native_attention
from baton.kernels.attention.cpu_plan import window_plan

ROWS = [(0, 1), (0, 17), (39, 1), (16, 1), (12, 5), (0, 0), (3, 0), (7, 1)]  # (start, length)

_compiled = pytest.mark.skipif(not native.available(), reason="no native kernels here")
PATHS = pytest.mark.parametrize(
    "path",
    [
        pytest.param(native_attention, id="native", marks=_compiled),
        pytest.param(cpu, id="torch"),
        pytest.param(reference, id="reference"),
    ],
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Scene:
    """Rows of random sequences, their earlier KV in scattered blocks of a pool, as steps would leave it."""

    def __init__(
        self, rows: Sequence[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, block_size: int
    ) -> None:
        noise = torch.Generator().manual_seed(heads * 1000 + head_dim * 10 + block_size)
        self.heads, self.kv_heads, self.head_dim, self.block_size = heads, kv_heads, head_dim, block_size
        needed = [-(-(start + length) // block_size) for start, length in rows]
        ids = (1 + torch.randperm(sum(needed) + 3, generator=noise)).tolist()
        self.pool = torch.zeros(sum(needed) + 4, 3, 2, block_size, kv_heads, head_dim)
        self.layer = self.pool[:, 1]
        self.spans, self.keys, self.values, self.queries = [], [], [], []
        for (start, length), count in zip(rows, needed, strict=True):
            table = [ids.pop() for _ in range(count)]
            self.spans.append(RowSpan(start, length, [*table, -1, 0]))
            for values in (self.keys, self.values):
                values.append(torch.randn(start + length, kv_heads, head_dim, generator=noise))
            self.queries.append(torch.randn(length, heads, head_dim, generator=noise))
        self.plan = make_plan(self.spans, block_size)
        self.q = torch.cat(self.queries)
        self._fill()

    def _fill(self) -> None:
        for span, keys, values in zip(self.spans, self.keys, self.values, strict=True):
            for position in range(span.start):
                slot = span.block_table[position // self.block_size], position % self.block_size
                self.layer[slot[0], 0, slot[1]] = keys[position]
                self.layer[slot[0], 1, slot[1]] = values[position]
        new = [
            torch.stack((k[s.start :], v[s.start :]), 1)
            for s, k, v in zip(self.spans, self.keys, self.values, strict=True)
        ]
        write_kv(KvLayer(self.layer), torch.cat(new), self.plan)

    def dense(self, window: int | None, softcap: float | None) -> torch.Tensor:
        out = []
        for span, q, keys, values in zip(self.spans, self.queries, self.keys, self.values, strict=True):
            for i in range(span.length):
                at = span.start + i
                first = 0 if window is None else max(0, at - window + 1)
                for head in range(self.heads):
                    kv = head // (self.heads // self.kv_heads)
                    scores = keys[first : at + 1, kv].double() @ q[i, head].double() * self.head_dim**-0.5
                    if softcap is not None:
                        scores = softcap * torch.tanh(scores / softcap)
                    out.append(scores.softmax(0) @ values[first : at + 1, kv].double())
        return torch.stack(out).view(-1, self.heads, self.head_dim)

    def paged(self, module: object, window: int | None = None, softcap: float | None = None) -> torch.Tensor:
        params = AttentionParams(self.head_dim**-0.5, window, softcap)
        return module.attention(self.q, KvLayer(self.layer), self.plan, params)


@PATHS
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(3, 1, 8), (9, 1, 16), (9, 3, 24), (12, 4, 40), (24, 1, 80), (7, 7, 96), (9, 3, 64)],
)
def test_odd_heads_and_sizes(heads: int, kv_heads: int, head_dim: int, block_size: int, path: object) -> None:
    scene = Scene(ROWS, heads, kv_heads, head_dim, block_size)
    torch.testing.assert_close(scene.paged(path).double(), scene.dense(None, None), atol=1e-4, rtol=0)


@PATHS
@pytest.mark.parametrize("length", range(1, 41))
def test_every_length(length: int, path: object) -> None:
    scene = Scene([(0, length), (length - 1, 1)], 6, 2, 16, 4)
    torch.testing.assert_close(scene.paged(path).double(), scene.dense(None, None), atol=1e-4, rtol=0)


@PATHS
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [1, 7, 8, 9, 40, 100])
def test_windows_and_soft_caps(window: int, softcap: float | None, path: object) -> None:
    rows = [*ROWS, (0, 7), (0, 8), (0, 9), (0, 16), (5, 12), (30, 9), (7, 1), (8, 1), (15, 1), (24, 1)]
    scene = Scene(rows, 6, 2, 16, 4)
    torch.testing.assert_close(
        scene.paged(path, window, softcap).double(), scene.dense(window, softcap), atol=1e-4, rtol=0
    )


@PATHS
def test_soft_cap_alone(path: object) -> None:
    scene = Scene(ROWS, 6, 2, 16, 4)
    torch.testing.assert_close(
        scene.paged(path, None, 5.0).double(), scene.dense(None, 5.0), atol=1e-4, rtol=0
    )


def test_rows_of_very_different_contexts_go_in_several_groups() -> None:
    scene = Scene([(2, 1), (700, 1), (5, 1), (300, 1), (690, 1)], 6, 2, 16, 4)
    groups = window_plan(scene.plan, None).decode
    assert sorted(group.rows for group in groups) == [1, 2, 2]
    torch.testing.assert_close(scene.paged(cpu).double(), scene.dense(None, None), atol=1e-4, rtol=0)


@PATHS
def test_only_blocks_that_the_window_reaches_are_read(path: object) -> None:
    scene = Scene([(63, 1), (40, 20)], 6, 2, 16, 4)
    want = scene.paged(path, 8)
    for span, first in zip(scene.spans, (56, 33), strict=True):
        for block in span.block_table[: first // 4]:
            scene.layer[block] = torch.nan
    torch.testing.assert_close(scene.paged(path, 8), want, atol=0, rtol=0)


@PATHS
def test_what_other_blocks_hold_has_no_effect(path: object) -> None:
    scene = Scene(ROWS, 6, 2, 16, 4)
    want = scene.paged(path)
    used = {block for span in scene.spans for block in span.block_table[: -(-span.context // 4)]}
    for block in set(range(len(scene.pool))) - used:
        scene.pool[block] = torch.nan
    assert 0 not in used
    torch.testing.assert_close(scene.paged(path), want, atol=0, rtol=0)


@PATHS
def test_no_rows(path: object) -> None:
    plan = make_plan([], 4)
    layer = KvLayer(torch.zeros(2, 2, 4, 2, 16))
    write_kv(layer, torch.zeros(0, 2, 2, 16), plan)
    assert path.attention(torch.zeros(0, 6, 16), layer, plan, AttentionParams(0.25)).shape == (0, 6, 16)


def test_a_short_block_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs 3 blocks, got 2"):
        make_plan([RowSpan(8, 1, [1, 2])], 4)


@PATHS
def test_addresses_beyond_32_bits(path: object) -> None:
    """A sparse pool of more than 2**31 elements, two blocks touched: those change, and nothing else does."""
    blocks, block_size, kv_heads, head_dim = 70_000, 16, 32, 64
    per_block = 2 * block_size * kv_heads * head_dim
    assert blocks * per_block > 2**32
    with tempfile.TemporaryFile() as file:
        file.truncate(blocks * per_block * 4)
        with mmap.mmap(file.fileno(), blocks * per_block * 4) as memory:
            pool = torch.frombuffer(memory, dtype=torch.float32).view(blocks, 1, 2, block_size, kv_heads, -1)
            far, near = blocks - 1, 2**31 // per_block
            spans = [RowSpan(0, block_size + 1, [far, near])]
            plan = make_plan(spans, block_size)
            kv = torch.randn(block_size + 1, 2, kv_heads, head_dim)
            write_kv(KvLayer(pool[:, 0]), kv, plan)
            torch.testing.assert_close(pool[far, 0].transpose(0, 1), kv[:block_size], atol=0, rtol=0)
            torch.testing.assert_close(pool[near, 0, :, 0], kv[block_size], atol=0, rtol=0)
            q, params = torch.randn(block_size + 1, kv_heads, head_dim), AttentionParams(0.1)
            small = torch.zeros(3, 2, block_size, kv_heads, head_dim)
            same = make_plan([RowSpan(0, block_size + 1, [1, 2])], block_size)
            write_kv(KvLayer(small), kv, same)
            torch.testing.assert_close(
                path.attention(q, KvLayer(pool[:, 0]), plan, params),
                path.attention(q, KvLayer(small), same, params),
                atol=0,
                rtol=0,
            )
            assert file_blocks(file) <= 2 * per_block * 4 + 64 * 4096
            del pool


def file_blocks(file: object) -> int:
    """Bytes that a sparse file really has."""
    import os

    os.fsync(file.fileno())
    return os.fstat(file.fileno()).st_blocks * 512


@pytest.mark.parametrize("blocks", [3, 300])
def test_no_table_names_a_negative_block(blocks: int) -> None:
    """Such as a window has left behind; the sequence's own table stays as it is."""
    table = array("q", [-1, *range(1, blocks)])
    plan = make_plan([RowSpan(4 * blocks - 1, 1, table), RowSpan(0, 4, [7, -1, -1])], 4)
    assert plan.tables.tolist() == [0, *range(1, blocks), 7]
    assert table[0] == -1
    assert plan.only_slot is None
    assert [list(part) for part in plan.places] == [
        [4 * blocks - 1, 0, 1, 2, 3],
        [blocks - 1, 7, 7, 7, 7],
        [3, 0, 1, 2, 3],
    ]
