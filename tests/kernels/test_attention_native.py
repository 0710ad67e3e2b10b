"""Native attention against fp64, and its promise: a query's bits depend on what it sees alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import native
from baton.kernels.attention import AttentionParams, KvLayer, RowSpan, SharedPrefix, cpu, make_plan, reference
from baton.kernels.attention import native as paged
from baton.kernels.native.program import Program
from tests.kernels.attention_cases import FILLS, KV_DTYPES, Talk, assert_near, digests, pool, rounds
from tests.kernels.isas import LESSER, digests_by

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")
HEADS = st.sampled_from([(1, 1), (3, 1), (9, 1), (9, 3), (12, 4), (24, 1), (7, 7), (16, 2)])
SIZES = st.sampled_from([1, 8, 16, 24, 40, 64, 80, 96, 128, 256])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.configure(1)


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, got, want)) and all(part.isfinite().all() for part in want)


@settings(max_examples=60)
@given(st.data(), HEADS, SIZES, st.integers(1, 20), st.sampled_from(KV_DTYPES))
def test_any_step(
    data: st.DataObject, heads: tuple[int, int], head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    starts = st.sampled_from([0, 0, 1, 15, 16, 40, 63, 64, 100, 448, 511, 512, 513])
    rows = data.draw(st.lists(st.tuples(starts, st.sampled_from([0, 1, 1, 2, 5, 17, 70])), max_size=4))
    params = AttentionParams(
        head_dim**-0.5,
        data.draw(st.sampled_from([None, 1, 7, 64, 65, 600])),
        data.draw(st.sampled_from([None, None, 2.0])),
    )
    lengths = [start + length for start, length in rows]
    talk = Talk(lengths, heads=heads, head_dim=head_dim, block_size=block_size, dtype=dtype)
    talk.write([(i, 0, n) for i, n in enumerate(lengths)]) if sum(lengths) else None
    step = [(i, *row) for i, row in enumerate(rows)]
    plan = make_plan(talk.spans(step), block_size)
    q = torch.cat([torch.zeros(0, heads[0], head_dim), *(talk.q[i][start:] for i, start, _ in step)])
    out, lse = paged.attention_lse(q, talk.layer, plan, params)
    rounded = rounds(paged, talk.layer)
    want, want_lse = reference.attention_lse(q.double(), talk.layer, plan, params, rounded=rounded)
    if len(q):
        assert_near(out, want, talk.layer)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(
    "params", [AttentionParams(0.125), AttentionParams(0.125, 70, 5.0)], ids=["plain", "odd"]
)
def test_however_a_prompt_is_cut(params: AttentionParams, dtype: torch.dtype) -> None:
    lengths = [600, 77, 1, 64]

    def talk() -> Talk:
        made = Talk(lengths, heads=(6, 2), head_dim=24, block_size=16, dtype=dtype)
        made.params = params
        return made

    want = talk().run(talk().whole())
    for size in (1, 5, 9, 64, 250):
        assert same(talk().run(talk().chunks(size)), want), size
    alone = [[(i, at, 1)] for i in (1, 3) for at in range(lengths[i])]
    got = talk().run(alone)
    assert same([got[1], got[3]], [want[1], want[3]])
    mixed = [
        [(0, 0, 590), (1, 0, 40)],
        [(0, 590, 1), (1, 40, 5), (2, 0, 1), (3, 0, 64)],
        [(1, 45, 32), (0, 591, 9)],
    ]
    assert same(talk().run(mixed), want)


@pytest.mark.parametrize("threads", [2, 3])
def test_however_many_threads(threads: int) -> None:
    lengths = [1200, 200, 1100, 3]
    want = Talk(lengths, block_size=16).run([[(i, 0, n - 1) for i, n in enumerate(lengths)]])
    steps = [[(i, 0, n - 1) for i, n in enumerate(lengths)], [(i, n - 1, 1) for i, n in enumerate(lengths)]]
    want = Talk(lengths, block_size=16).run(steps)
    native.configure(threads)
    for _ in range(3):
        assert same(Talk(lengths, block_size=16).run(steps), want)


@pytest.mark.parametrize("prefix", [0, 16, 48, 64, 80, 560])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_shared_prefixes(prefix: int, dtype: torch.dtype) -> None:
    """Rows of 1 and of 3 tokens, one whose suffix is a single token, and one too long to share."""
    lengths = [prefix + own for own in (1, 5, 90, 30, 41)]
    tails = [[(0, prefix, 1), (1, prefix + 4, 1), (2, prefix + 87, 3), (3, prefix, 30), (4, prefix + 40, 1)]]
    head = [[(i, 0, start) for i, start, _ in tails[0]]]
    for params in (AttentionParams(0.25), AttentionParams(0.25, 60, 5.0)):
        talk = Talk(lengths, block_size=16, prefix=prefix, dtype=dtype)
        talk.params = params
        talk.run(head)
        got = talk.run(tails, share=True)
        want = talk.run(tails)
        for (i, start, _), one, other in zip(tails[0], got, want, strict=True):
            assert torch.equal(one[start:], other[start:]), i
            assert other[start:].isfinite().all()


def test_nested_prefixes_load_a_tile_once_for_all_that_share_it() -> None:
    talk = Talk([700, 701, 640, 600, 650], prefix=576, block_size=16)
    rows = [(i, n - 1, 1) for i, n in enumerate(talk.lengths)]
    for i in (0, 1):  # these two have more in common
        talk.kv[i][576:640] = talk.kv[0][576:640]
        talk.tables[i][36:40] = talk.tables[0][36:40]
    talk.run([[(i, 0, n - 1) for i, n in enumerate(talk.lengths)]])
    want = talk.run([rows])
    q = torch.cat([talk.q[i][-1:] for i in range(5)])
    levels = [SharedPrefix((0, 1, 2, 3, 4), 0, 36), SharedPrefix((0, 1), 36, 40)]
    plan = make_plan(talk.spans(rows), 16, shared=levels)
    order = plan.order.tolist()
    assert sorted(order) == [0, 1, 2, 3, 4]
    ends = plan.shared_ends.tolist()
    assert {order[i - 1 : i + 1][0] for i in range(1, 5) if ends[i] == 640} <= {0, 1}
    assert sorted(ends) == [0, 576, 576, 576, 640]
    got = paged.attention(q, talk.layer, plan, talk.params)
    assert torch.equal(got, torch.cat([want[i][-1:] for i in range(5)]))


@pytest.mark.parametrize("path", [paged, cpu], ids=["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("window", [None, 8])
def test_what_slots_held_before_reaches_nothing(window: int | None, dtype: torch.dtype, path: object) -> None:
    for block_size in (4, 16):
        results = []
        for fill in FILLS.values():
            talk = Talk(list(range(1, 18)), dtype=dtype, block_size=block_size, fill=fill)
            talk.params = AttentionParams(0.25, window)
            for table in talk.tables:
                table += [-1, 0]
            steps = [[(i, 0, n // 2) for i, n in enumerate(talk.lengths)]]
            steps += [[(i, n // 2, n - n // 2 - 1) for i, n in enumerate(talk.lengths)]]
            steps += [[(i, n - 1, 1) for i, n in enumerate(talk.lengths)]]
            results.append(talk.run(steps, path))
        for one, other in pairwise(results):
            assert same(one, other)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_a_token_that_is_not_a_number_spoils_only_what_sees_it(dtype: torch.dtype) -> None:
    talk = Talk([100, 50], block_size=16, dtype=dtype)
    want = talk.run(talk.whole())
    talk.kv[0][40, 1] = torch.nan
    talk.kv[1][20, 0] = torch.inf
    got = talk.run(talk.whole())
    assert torch.equal(got[0][:40], want[0][:40])
    assert got[0][40:].isnan().all()
    assert torch.equal(got[1][:20], want[1][:20])
    talk.params = AttentionParams(0.25, window=8)
    got = talk.run(talk.whole())
    assert got[0][48:].isfinite().all()
    assert got[0][40:48].isnan().all()


def test_blocks_out_of_the_window_may_be_gone() -> None:
    talk = Talk([200], block_size=4)
    talk.params = AttentionParams(0.25, window=8)
    want = talk.run(talk.whole())[0][-5:]
    talk.tables[0][: (195 - 7) // 4] = [-1] * ((195 - 7) // 4)
    talk.layer.codes[0] = torch.nan
    plan = make_plan(talk.spans([(0, 195, 5)]), 4)
    assert torch.equal(paged.attention(talk.q[0][-5:], talk.layer, plan, talk.params), want)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("path", [paged, cpu], ids=["native", "torch"])
def test_every_way_reads_the_scales_of_quantised_kv(path: ModuleType, dtype: torch.dtype) -> None:
    """Prefill, chunks, decode, verification rows and cascade, against fp64 over the dequantised pool."""
    lengths = [70, 66, 75]
    talk = Talk(lengths, prefix=64, dtype=dtype, block_size=16)
    cuts = [talk.whole(), talk.chunks(9), talk.chunks(1), talk.chunks(4)]
    for steps in cuts:
        got = talk.run(steps, path)
        for one, other in zip(got, talk.exact(path), strict=True):
            assert_near(one, other, talk.layer, path)
    got = talk.run(talk.chunks(1, begin=64), path, share=True)
    for one, other in zip(got, talk.exact(path), strict=True):
        assert_near(one[64:], other[64:], talk.layer, path)
    assert talk.layer.scales is not None
    talk.layer.scales[:, 1] *= 100
    plan = make_plan(talk.spans(talk.whole()[0]), 16)
    louder = path.attention(torch.cat(talk.q), talk.layer, plan, talk.params)
    assert_near(louder / 100, torch.cat(talk.exact(path)) / 100, talk.layer, path)


@pytest.mark.skipif(not LESSER, reason="this machine has one instruction set only")
def test_both_instruction_sets_give_the_same_bits() -> None:
    """AMX has products of integers alone."""
    assert digests_by("avx2", "attention_cases") == digests()


def test_a_recorded_call_serves_step_after_step() -> None:
    """Queries lie in the qkv buffer, of which a step uses the first rows."""
    talk = Talk([90, 40], heads=(6, 2), head_dim=24, block_size=16)
    want = talk.run(talk.whole())
    qkv, out, lse = torch.zeros(64, 10 * 24), torch.zeros(64, 6 * 24), torch.zeros(64, 6)
    rows = paged.NativePlan()
    q = qkv.view(64, 10, 24)[:, :6]
    program = Program([paged.call(q, talk.layer, rows, talk.params, out.view(64, 6, 24), lse)])
    for step in ([(0, 30, 60), (1, 39, 1)], [(1, 0, 0)], [(0, 89, 1)], [(1, 10, 5), (0, 0, 20)]):
        plan = make_plan(talk.spans(step), 16)
        rows.update(plan)
        fresh = torch.cat([talk.q[i][start : start + length] for i, start, length in step])
        q[: plan.tokens] = fresh
        out.fill_(7)
        program()
        results = [want[i][start : start + length].flatten(1) for i, start, length in step]
        assert torch.equal(out[: plan.tokens], torch.cat(results))
        assert torch.equal(lse[: plan.tokens], paged.attention_lse(fresh, talk.layer, plan, talk.params)[1])
        assert (out[plan.tokens :] == 7).all()


@pytest.mark.parametrize("share", [False, True])
def test_tokens_before_those_that_are_wanted_are_left_out(share: bool) -> None:
    """Where nothing else of a layer is read. Long rows may come to a token, between rows that share."""
    lengths = [49, 53, 138, 78, 89, 50]
    step = [(0, 48, 1), (1, 48, 5), (2, 135, 3), (3, 48, 30), (4, 88, 1), (5, 0, 50)]
    talk = Talk(lengths, heads=(6, 2), head_dim=16, block_size=16, prefix=48)
    talk.run([[(i, 0, start) for i, start, _ in step]])
    talk.write(step)
    plan = make_plan(talk.spans(step), 16, shared=[SharedPrefix((0, 1, 2, 3, 4), 0, 3)] if share else ())
    q = torch.cat([talk.q[i][start : start + length] for i, start, length in step])
    want = paged.attention(q, talk.layer, plan, talk.params)
    rows, out = paged.NativePlan(), torch.empty(q.shape)
    program = Program([paged.call(q, talk.layer, rows, talk.params, out)])
    firsts = [0, 1, 6, 9, 39, 40, plan.tokens]
    for wanted in ([], [38], [0, 39], [89, 5, 4, 8, 24], [1, 40], range(plan.tokens)):
        computed = [
            token
            for begin, end in pairwise(firsts)
            for token in range(min([at for at in wanted if begin <= at < end], default=end), end)
        ]
        rows.update(plan, wanted)
        out.fill_(7)
        program()
        left = torch.ones(plan.tokens, dtype=torch.bool)
        left[computed] = False
        assert torch.equal(out[computed], want[computed])
        assert (out[left] == 7).all()
    rows.update(plan)
    program()
    assert torch.equal(out, want)


def test_what_does_not_fit_is_refused() -> None:
    params, plan = AttentionParams(1.0), paged.NativePlan()
    q, layer = torch.zeros(4, 6, 16), pool(torch.float32, 2, (4, 2, 16))

    def call(q: torch.Tensor, layer: KvLayer, out: torch.Tensor | None = None) -> None:
        paged.call(q, layer, plan, params, torch.zeros(q.shape) if out is None else out)

    call(q, layer)
    for bad in (q[..., :8], q[:, :5], q.double(), q.transpose(1, 2).contiguous().transpose(1, 2)):
        with pytest.raises(ValueError, match="queries"):
            call(bad, layer)
    with pytest.raises(ValueError, match="without scales"):
        call(q, KvLayer(layer.codes.to(torch.int8)))
    with pytest.raises(ValueError, match="results"):
        call(q, layer, torch.zeros(4, 12, 16)[:, ::2])
    for bad in (torch.zeros(q.shape).double(), torch.zeros(3, 6, 16), torch.zeros(4, 6, 17)[..., :16]):
        with pytest.raises(ValueError, match="results"):
            call(q, layer, bad)
    for bad in (torch.zeros(4, 6).double(), torch.zeros(4, 5), torch.zeros(6, 4).t()):
        with pytest.raises(ValueError, match="sums"):
            paged.call(q, layer, plan, params, torch.zeros(q.shape), bad)
    coded = pool(torch.int8, 2, (4, 2, 16))
    assert coded.scales is not None
    call(q, coded)
    for scales in (coded.scales.float(), coded.scales[..., :1]):
        with pytest.raises(ValueError, match="scales"):
            call(q, KvLayer(coded.codes, scales))


def test_arrays_plan_as_lists_do() -> None:
    spans = [RowSpan(9 + i, 1 + i % 2, list(range(i, 40 + i))) for i in range(20)]
    plan = make_plan(spans, 4)
    arrays = make_plan([RowSpan(s.start, s.length, array("q", s.block_table)) for s in spans], 4)
    assert plan.packed == arrays.packed
    positions = [at for s in spans for at in range(s.start, s.context)]
    blocks = [s.block_table[at // 4] for s in spans for at in range(s.start, s.context)]
    for made in (plan, arrays):
        assert made.positions.tolist() == positions
        assert made.blocks.tolist() == blocks
        assert made.offsets.tolist() == [at % 4 for at in positions]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_sharers_are_cut_in_pieces(threads: int) -> None:
    """The prefix of 90 rows is met by pieces of them, rows of 2 and of 3 tokens, fewer with more threads."""
    lengths = [600 + i % 7 for i in range(90)]
    rows = [(i, n - 2 - i % 2, 2 + i % 2) for i, n in enumerate(lengths)]
    talk = Talk(lengths, prefix=592, block_size=16)
    talk.run([[(i, 0, start) for i, start, _ in rows]])
    want = talk.run([rows])
    native.configure(threads)
    got = talk.run([rows], share=True)
    for i, start, _ in rows:
        assert torch.equal(got[i][start:], want[i][start:]), i
