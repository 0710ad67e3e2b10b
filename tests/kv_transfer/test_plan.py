"""Every plan against the copy one would write without thinking: token by token, head by head."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import FailedPrecondition
from baton.kv_transfer.layout import KvLayout, Part, compatible, shares
from baton.kv_transfer.plan import CopyOp, extent, op_bytes, plan, split
from baton.kv_transfer.writes import Write

BASE = KvLayout(4, 0, 2, 0, 3, 2, "float32", 12)


def apply(op: CopyOp, src: np.ndarray, source: KvLayout, dst: np.ndarray, target: KvLayout) -> None:
    def where(layout: KvLayout, block: int, token: int) -> tuple[slice, ...]:
        p = op.part
        return (
            slice(block, block + op.blocks),
            slice(p.layer_start - layout.layer_start, p.layer_end - layout.layer_start),
            slice(None),
            slice(token, token + op.tokens),
            slice(p.head_start - layout.head_start, p.head_end - layout.head_start),
        )

    dst[where(target, op.dst_block, op.dst_token)] += src[where(source, op.src_block, op.src_token)]


def reference(source: KvLayout, src: np.ndarray, target: KvLayout, write: Write) -> np.ndarray:
    dst = np.zeros(target.shape)
    for p in range(write.start, write.end):
        sb = write.src_blocks[(p - write.src_first) // source.block_size]
        db = write.dst_blocks[(p - write.dst_first) // target.block_size]
        for layer in range(source.layer_start, source.layer_end):
            for head in range(source.head_start, source.head_end):
                inside = (
                    target.layer_start <= layer < target.layer_end
                    and target.head_start <= head < target.head_end
                )
                if inside and (write.part is None or _in(write.part, layer, head)):
                    dst[
                        db, layer - target.layer_start, :, p % target.block_size, head - target.head_start
                    ] += src[
                        sb, layer - source.layer_start, :, p % source.block_size, head - source.head_start
                    ]
    return dst


def _in(part: Part, layer: int, head: int) -> bool:
    return part.layer_start <= layer < part.layer_end and part.head_start <= head < part.head_end


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    layer, head = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return KvLayout(
        block_size=draw(st.sampled_from([1, 2, 3, 4, 8])),
        layer_start=layer,
        layer_end=layer + draw(st.integers(1, 3)),
        head_start=head,
        head_end=head + draw(st.integers(1, 3)),
        head_dim=2,
        dtype="float32",
        num_blocks=24,
    )


@st.composite
def writes(draw: st.DrawFn, source: KvLayout, target: KvLayout) -> Write:
    start = draw(st.integers(0, 20))
    end = start + draw(st.integers(0, 18))
    sides = []
    for layout in (source, target):
        first = draw(st.integers(0, start // layout.block_size)) * layout.block_size
        count = -(-(end - first) // layout.block_size)
        base = draw(st.integers(1, 3))
        ids = list(range(base, 24)) if draw(st.booleans()) else draw(st.permutations(range(1, 24)))
        # Positions before the write need ids too; with blocks of one token they may outnumber the pool.
        need = ids[:count] if count <= len(ids) else (ids * 3)[:count]
        sides.append((need, first))
    (src_blocks, src_first), (dst_blocks, dst_first) = sides
    return Write(1, 1, start, end, src_blocks, src_first, dst_blocks, dst_first)


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    layouts(),
    layouts(),
    st.sampled_from([1, 40, 100, 10**9]),
    st.sampled_from([("float32", 8), ("bfloat16", 4), ("int8", 4)]),
)
def test_plan_and_its_pieces_copy_what_the_naive_copy_does(
    data: st.DataObject, source: KvLayout, target: KvLayout, limit: int, dtype: tuple[str, int]
) -> None:
    name, vector = dtype
    write = data.draw(writes(source, target))
    if data.draw(st.booleans()):
        write = replace(write, part=Part(1, 2, 1, 3))
    src = np.arange(1.0, 1 + np.prod(source.shape)).reshape(source.shape)
    dst = np.zeros(target.shape)
    moved = 0
    for op in plan(source, target, write):
        for piece in split(op, target, name, limit):
            apply(piece, src, source, dst, target)
            moved += op_bytes(piece, target, name)
            one_token_layer = 2 * vector * (piece.part.head_end - piece.part.head_start)
            assert op_bytes(piece, target, name) <= max(limit, one_token_layer)
    assert np.array_equal(dst, reference(source, src, target, write))
    vectors = np.count_nonzero(reference(source, np.ones(source.shape), target, write)) // 2
    assert moved == vector * vectors


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    layouts(),
    st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 3), (4, 4)]),
    st.booleans(),
)
def test_source_ranks_cover_each_element_of_the_target_once(
    data: st.DataObject, target: KvLayout, grid: tuple[int, int], replicated: bool
) -> None:
    """PP x TP ranks over 6 layers and 6 heads; with `replicated` every rank appears twice (TP > KV heads)."""
    pp, tp = grid
    cuts_l = [0, *sorted(data.draw(st.permutations(range(1, 6)))[: pp - 1]), 6]
    cuts_h = [0, *sorted(data.draw(st.permutations(range(1, 6)))[: tp - 1]), 6]
    sources = [
        KvLayout(data.draw(st.sampled_from([1, 2, 4])), a, b, c, d, 2, "float32", 64)
        for a, b in pairwise(cuts_l)
        for c, d in pairwise(cuts_h)
        for _ in range(2 if replicated else 1)
    ]
    start, tokens = data.draw(st.integers(0, 7)), data.draw(st.integers(1, 9))
    dst_first = start // target.block_size * target.block_size
    count = np.zeros(target.shape, dtype=int)
    for source, parts in zip(sources, shares(sources, target), strict=True):
        for part in parts:
            write = Write(1, 1, start, start + tokens, range(1, 40), 0, range(1, 24), dst_first, part=part)
            for op in plan(source, target, write):
                apply(op, np.ones(source.shape, dtype=int), source, count, target)
    full = replace(BASE, layer_end=6, head_end=6, block_size=1, num_blocks=64)
    whole = Write(1, 1, start, start + tokens, range(1, 40), 0, range(1, 24), dst_first)
    assert np.array_equal(count, reference(full, np.ones(full.shape), target, whole))


def test_whole_blocks_of_equal_layouts_merge_into_runs() -> None:
    write = Write(1, 1, 4, 24, [9, 3, 4, 5, 8, 1], 0, [2, 6, 7, 8, 9, 1], 0)
    whole = Part(0, 2, 0, 3)
    assert plan(BASE, BASE, write) == [
        CopyOp(3, 0, 6, 0, 4, whole, blocks=3),
        CopyOp(8, 0, 9, 0, 4, whole),
        CopyOp(1, 0, 1, 0, 4, whole),
    ]
    assert extent(BASE, 6, plan(BASE, BASE, write)[0]) == (6 * BASE.block_bytes, 3 * BASE.block_bytes)


def test_a_quantised_record_holds_its_scales() -> None:
    layout = replace(BASE, dtype="int8", head_dim=64)
    assert layout.record_bytes == 2 * 4 * 3 * (64 + 2)
    assert layout.tensor_shape == (12, 2, layout.record_bytes)
    assert layout.block_bytes == 2 * layout.record_bytes
    layer = CopyOp(1, 0, 1, 0, 4, Part(1, 2, 0, 3))
    assert extent(layout, 1, layer) == (3 * layout.record_bytes, layout.record_bytes)
    assert op_bytes(layer, layout, "int8") == layout.record_bytes
    assert replace(layout, dtype="bfloat16").block_bytes >= 1.9 * layout.block_bytes


def test_a_partial_block_is_not_contiguous_and_a_layer_of_a_block_is() -> None:
    whole = CopyOp(1, 0, 1, 0, 4, Part(0, 2, 0, 3))
    assert extent(BASE, 1, replace(whole, tokens=3)) is None
    assert extent(BASE, 1, replace(whole, part=Part(0, 2, 0, 2))) is None
    assert extent(BASE, 1, replace(whole, part=Part(1, 2, 0, 3), blocks=2)) is None
    layer = BASE.block_bytes // 2
    assert extent(BASE, 1, replace(whole, part=Part(1, 2, 0, 3))) == (3 * layer, layer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end": 9}, "src_blocks cover positions"),
        ({"start": -1}, "no range"),
        ({"start": 5, "end": 3}, "no range"),
        ({"src_first": 2, "start": 2}, "not a multiple"),
        ({"dst_first": 4}, "dst_blocks cover positions"),
        ({"dst_blocks": [1, 0]}, "not all in"),
        ({"src_blocks": [1, 12]}, "not all in"),
        ({"dst_blocks": [-1, 2]}, "not all in"),
    ],
)
def test_a_write_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    write = replace(Write(1, 1, 0, 8, [1, 2], 0, [3, 4], 0), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        plan(BASE, BASE, write)


def test_unusable_ids_outside_the_span_do_not_matter() -> None:
    assert plan(BASE, BASE, Write(1, 1, 4, 8, [0, 2], 0, [0, 4, 99], 0))


@pytest.mark.parametrize(
    ("change", "items"),
    [
        ({"block_size": 16, "dtype": "bfloat16", "num_blocks": 3}, []),
        ({"head_dim": 4}, ["head_dim"]),
        ({"layer_start": 2, "layer_end": 4}, ["layers"]),
        ({"head_start": 3, "head_end": 6}, ["kv heads"]),
        ({"dtype": "float8_e5m2", "head_dim": 1}, ["head_dim", "dtype"]),
        ({"block_size": 0}, ["shape"]),
    ],
)
def test_compatible_names_what_cannot_be_converted(change: dict[str, object], items: list[str]) -> None:
    problems = compatible(BASE, replace(BASE, **change))  # type: ignore[arg-type]
    assert [problem.split(":")[0] for problem in problems] == items


def test_shares_name_what_no_rank_holds() -> None:
    with pytest.raises(FailedPrecondition, match=r"layers \[1, 2\) x kv heads \[0, 3\)"):
        shares([replace(BASE, layer_end=1)], BASE)
