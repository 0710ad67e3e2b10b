"""Synthetic workloads: the rates and bursts asked for, the same for one seed; prompts that share prefixes."""

from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.workload import arrivals as work
from baton.sim.workload import lengths
from baton.sim.workload.arrival import Arrival, prompt_ids

SIZES = lengths.lognormal(200, 50)


def gaps_of(trace):
    return [b.at_s - a.at_s for a, b in pairwise(trace)]


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_rate_and_burstiness(cv):
    trace = list(islice(work.gamma(5.0, cv, SIZES, seed=1), 20_000))
    found = gaps_of(trace)
    assert fmean(found) == pytest.approx(0.2, rel=0.08)
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_a_seed_fixes_everything_and_the_rate_keeps_the_requests():
    def some(rate, seed):
        return list(islice(work.poisson(rate, SIZES, seed), 50))

    assert some(2.0, 7) == some(2.0, 7)
    assert some(2.0, 7) != some(2.0, 8)
    slow, fast = some(1.0, 7), some(4.0, 7)
    assert [a.prompt_tokens for a in slow] == [a.prompt_tokens for a in fast]
    assert slow[-1].at_s == pytest.approx(4 * fast[-1].at_s)


def test_lengths_have_the_mean_asked_for():
    trace = list(islice(work.constant(1.0, SIZES, seed=3), 20_000))
    assert fmean(a.prompt_tokens for a in trace) == pytest.approx(200, rel=0.05)
    assert fmean(a.output_tokens for a in trace) == pytest.approx(50, rel=0.05)
    pairs = {(a.prompt_tokens, a.output_tokens) for a in trace[:5]}
    drawn = islice(work.poisson(1.0, lengths.like(trace[:5]), seed=0), 100)
    assert {(a.prompt_tokens, a.output_tokens) for a in drawn} == pairs
    assert next(work.poisson(1.0, lengths.fixed(7, 3), seed=0)).prompt_tokens == 7
    assert 4 <= next(work.poisson(1.0, lengths.uniform((4, 6), (1, 1)), seed=0)).prompt_tokens <= 6


def test_scaling_cutting_thinning_and_slos():
    trace = list(islice(work.constant(1.0, SIZES, seed=0), 100))
    assert [a.at_s for a in work.scaled(trace, 0.5)] == [a.at_s / 2 for a in trace]
    part = list(work.cut(trace, 10.0, 20.0))
    assert [a.at_s for a in part] == pytest.approx([float(i) for i in range(10)])
    kept = list(work.thinned(trace, 0.3, seed=1))
    assert kept == list(work.thinned(trace, 0.3, seed=1))
    assert 15 < len(kept) < 45
    slo = Slo(ttft_s=1.0)
    assert all(a.slo == slo for a in work.with_slo(trace, slo))
    assert work.offered_rate(trace) == pytest.approx(1.0)
    assert fmean(gaps_of(list(work.timed(trace, 10.0, 1.0, seed=2)))) == pytest.approx(0.1, rel=0.4)
    assert len(list(work.first(trace, 3))) == 3


def test_repeats_have_prefixes_of_their_own():
    trace = [Arrival(0.0, 10, 1, (0, 1), 4), Arrival(2.0, 10, 1, (0, 2), 4)]
    fresh = list(work.repeated(trace, 3))
    assert [a.at_s for a in fresh] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert [a.prefix for a in fresh[2:4]] == [(3, 4), (3, 5)]
    assert [a.prefix for a in work.repeated(trace, 2, fresh_prefixes=False)][2:] == [(0, 1), (0, 2)]
    assert list(work.repeated([], 2)) == []


def test_system_prompts_are_shared_by_a_skewed_few():
    trace = work.first(work.poisson(1.0, lengths.fixed(100, 1), seed=0), 2000)
    shared = list(work.shared_prefixes(trace, groups=8, tokens=64, seed=0))
    sizes = [sum(a.prefix[0] == group * 4 for a in shared) for group in range(8)]
    assert sum(sizes) == 2000
    assert sizes[0] > 2.5 * sizes[3] > 0
    assert all(a.shared_tokens == 64 for a in shared)


@pytest.mark.parametrize(
    "make",
    [
        lambda: next(work.poisson(0.0, SIZES, 0)),
        lambda: next(work.gamma(1.0, -1.0, SIZES, 0)),
        lambda: work.scaled([], 0.0),
        lambda: lengths.lognormal(0.0, 5.0),
        lambda: lengths.like([]),
        lambda: Arrival(0.0, 0, 1),
        lambda: Arrival(0.0, 1, 0),
        lambda: Arrival(0.0, 1, 1, (), 0),
        lambda: prompt_ids(Arrival(0.0, 1, 1), 1, 0),
        lambda: prompt_ids(Arrival(0.0, 1, 1), 5, -1),
        lambda: prompt_ids(Arrival(0.0, 1, 1, (-1,)), 5, 0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(InvalidArgument):
        make()


IDS = st.lists(st.integers(0, 10**6), max_size=5)


@given(IDS, IDS, st.integers(1, 200), st.sampled_from([331, 50_000]))
def test_prompts_agree_exactly_where_their_prefixes_do(a, b, tokens, vocab_size):
    """Blocks here can spell any id: the first difference is at once in the first block that differs."""
    block = 8
    one = prompt_ids(Arrival(0.0, tokens, 1, tuple(a), block), vocab_size, 1)
    two = prompt_ids(Arrival(0.0, tokens, 1, tuple(b), block), vocab_size, 2)
    assert len(one) == len(two) == tokens
    assert all(0 <= token < vocab_size for token in one)
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    shared = min(common * block, tokens)
    assert one[:shared] == two[:shared]
    assert tokens < shared + 6 or one[shared : shared + 6] != two[shared : shared + 6]


def test_a_long_prompt_wraps_around_a_small_vocabulary():
    ids = prompt_ids(Arrival(0.0, 1000, 1), 5, 3)
    assert len(ids) == 1000
    assert set(ids) == set(range(5))


def test_a_stretch_begins_at_nought():
    trace = [Arrival(float(i * i), 10 + i, 1) for i in range(10)]
    some = list(work.stretch(trace, 3, 4))
    assert [arrival.prompt_tokens for arrival in some] == [13, 14, 15, 16]
    assert [arrival.at_s for arrival in some] == [0.0, 7.0, 16.0, 27.0]
    assert list(work.stretch(trace, 0, None)) == trace
    assert not list(work.stretch(trace, 10, 5))
