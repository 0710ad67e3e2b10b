"""Figures made of records: pure, so tried on many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.bench.load.bootstrap import compared, mean, quantile_of
from baton.bench.load.goodput import beyond_hope, goodput, met, wilson
from baton.bench.load.record import Outcome, shared_out
from baton.bench.load.results import Pool
from baton.bench.load.search import RateSearch
from baton.bench.load.spread import spread
from baton.bench.load.summary import summarise
from baton.bench.load.tables import outcome_table
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from tests.bench.records import record

TIMES = st.floats(0.0, 1e4, allow_nan=False)


# ---- one request -----------------------------------------------------------------------------------------


def test_latencies_count_from_when_a_request_was_due() -> None:
    late = record(intended_s=10.0, first_s=0.5, step_s=0.05, tokens=5)
    late.sent_s = 10.4
    assert late.ttft_s == pytest.approx(0.5)
    assert late.tpot_s == pytest.approx(0.05)
    assert late.e2e_s == pytest.approx(0.7)
    assert late.lateness_s == pytest.approx(0.4)
    assert late.gaps_s() == pytest.approx([0.05] * 4)
    assert late.longest_gap_s == pytest.approx(0.05)


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_have_no_pace(tokens: int) -> None:
    short = record(tokens=tokens, first_s=0.5 if tokens else None)
    assert short.tpot_s is None
    assert short.gaps_s() == []
    assert (short.ttft_s is None) == (tokens == 0)
    assert met(short)


def test_an_answer_in_one_piece_has_no_pace_but_a_first_token() -> None:
    whole = record(tokens=1)
    whole.chunks, whole.output_tokens = [(0.5, 8)], 8
    assert (whole.tpot_s, whole.ttft_s, whole.gaps_s()) == (None, 0.5, [])


def test_several_tokens_in_a_piece_are_several_gaps() -> None:
    joined = record()
    joined.chunks, joined.output_tokens = [(1.0, 1), (2.0, 4)], 5
    assert joined.gaps_s() == [0.25] * 4
    assert joined.longest_gap_s == 1.0
    assert joined.tpot_s == 0.25


@given(st.integers(0, 500), st.integers(1, 60))
def test_tokens_are_shared_out_evenly(tokens: int, pieces: int) -> None:
    shares = shared_out(tokens, pieces)
    assert len(shares) == pieces
    assert sum(shares) == max(tokens, pieces)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.OK])
def test_what_failed_met_nothing(outcome: Outcome) -> None:
    bad = record(outcome=outcome, slo=Slo())
    assert not met(bad)
    assert bad.tpot_s is None
    assert bad.e2e_s is None
    assert bad.ttft_s == 0.5
    assert outcome.failed == (outcome is not Outcome.REJECTED)


@given(TIMES, TIMES, st.integers(2, 6))
def test_both_targets_have_to_be_met(first_s: float, step_s: float, tokens: int) -> None:
    tried = record(first_s=first_s, step_s=step_s, tokens=tokens)
    assert tried.ttft_s is not None
    assert tried.tpot_s is not None
    assert met(tried) == (tried.ttft_s <= 1.0 and tried.tpot_s <= 0.1)


# ---- many ------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_spreads_are_numpy_s(values: list[float]) -> None:
    found = spread([*values, None])
    assert found.count == len(values)
    for share, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(np.percentile(values, share), abs=1e-6)
    assert (found.low, found.high) == (min(values), max(values))


def test_a_spread_of_nothing_says_so() -> None:
    assert spread([None]).count == 0
    assert spread([]).p50 is None


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40), st.floats(1.0, 100.0))
def test_goodput_counts_everything_that_was_asked(outcomes: list[Outcome], window_s: float) -> None:
    records = [record(i, outcome=outcome) for i, outcome in enumerate(outcomes)]
    found = goodput(records, window_s)
    good = outcomes.count(Outcome.OK)
    assert (found.counted, found.met) == (len(outcomes), good)
    assert found.rate == pytest.approx(good / window_s)
    assert found.low <= found.attainment <= found.high or not outcomes
    summary = summarise(records, window_s)
    assert (
        summary.ok + summary.rejected + summary.failed + summary.unfinished
        == len(outcomes)
        == sum(summary.outcomes.values())
    )


def test_open_requests_are_no_failures_and_the_offered_rate_is_shown() -> None:
    records = [record(0), record(1, outcome=Outcome.UNFINISHED), record(2, outcome=Outcome.TIMEOUT)]
    summary = summarise(records, 2.0)
    assert (summary.ok, summary.failed, summary.unfinished) == (1, 1, 1)
    shown = outcome_table([Pool("a", 5.0, 1, summary, "")])
    row = {str(column.header): next(iter(column.cells)) for column in shown.columns}
    assert (row["rate"], row["offered"], row["good/s"]) == ("5", "1.5", "0.5")
    assert (row["ok"], row["failed"], row["open"]) == ("1", "1", "1")


def test_errors_that_differ_in_numbers_are_one() -> None:
    said = ["a wait of 61.4 s", "a wait of 7 s", "no", "", "a wait of 61.4 s"]
    found = summarise([record(i, outcome=Outcome.REJECTED, error=text) for i, text in enumerate(said)], 1.0)
    assert found.errors == {"a wait of 61.4 s": 3, "no": 1}


@given(st.integers(0, 300), st.integers(1, 300))
def test_wilson_holds_the_share_and_narrows(hits: int, tries: int) -> None:
    hits = min(hits, tries)
    low, high = wilson(hits, tries)
    assert 0.0 <= low <= hits / tries <= high <= 1.0
    wider_low, wider_high = wilson(hits, tries, 4.0)
    assert wider_low <= low
    assert high <= wider_high
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_as_published() -> None:
    low, high = wilson(81, 263)  # Newcombe, Stat. Med. 17, 1998, table I
    assert (low, high) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30), st.floats(0.05, 1.0))
def test_beyond_hope_is_right(good: list[bool], to_come: int, attainment: float) -> None:
    """Never said while the attainment can be reached; said once too many have missed."""
    records = [record(i, outcome=Outcome.OK if ok else Outcome.SERVER_ERROR) for i, ok in enumerate(good)]
    expected = len(good) + to_come
    reachable = expected == 0 or (expected - good.count(False)) / expected >= attainment - 1e-12
    assert beyond_hope(records, expected, attainment, 0.0) == (not reachable)


def test_an_overdue_first_token_is_a_miss_before_it_comes() -> None:
    waiting = record(first_s=None, outcome=Outcome.UNFINISHED, intended_s=3.0)
    assert not beyond_hope([waiting], 1, 0.9, 3.9)
    assert beyond_hope([waiting], 1, 0.9, 4.1)
    streaming = record(first_s=0.5, outcome=Outcome.UNFINISHED)
    assert not beyond_hope([streaming], 1, 0.9, 100.0)


# ---- searching -------------------------------------------------------------------------------------------


@given(st.floats(0.02, 5000.0), st.floats(0.02, 5000.0), st.floats(0.01, 0.5))
def test_the_search_finds_the_limit(limit: float, start: float, precision: float) -> None:
    search = RateSearch(start, precision)
    tries = 0
    while (rate := search.next_rate()) is not None:
        assert search.floor <= rate <= search.ceiling
        search.tell(rate, rate <= limit)
        tries += 1
        assert tries < 60
    assert search.best <= limit
    assert search.failed is not None
    assert search.failed > limit
    assert search.failed <= search.best * (1 + precision) * (1 + 1e-9)


def test_a_search_without_an_end_ends() -> None:
    for held, best, failed in ((True, 1e4, None), (False, 0.0, 0.01)):
        search = RateSearch(1.0)
        while (rate := search.next_rate()) is not None:
            search.tell(rate, held)
        assert (search.best, search.failed) == (best, failed)


def test_a_search_begins_where_it_may() -> None:
    for start, precision in ((0.0, 0.05), (math.inf, 0.05), (1.0, 0.0)):
        with pytest.raises(InvalidArgument):
            RateSearch(start, precision)


# ---- comparing -------------------------------------------------------------------------------------------


def test_alike_is_not_clear_and_different_is() -> None:
    dice = np.random.default_rng(1)
    one, two = dice.gamma(4.0, 0.1, 300), dice.gamma(4.0, 0.1, 300)
    same = compared(list(one), list(two), quantile_of(0.5))
    assert not same.clear
    worse = compared(list(one), list(two * 1.5), quantile_of(0.5))
    assert worse.clear
    assert worse.ratio_low is not None
    assert worse.ratio_high is not None
    assert worse.ratio_low < 1.5 < worse.ratio_high
    assert worse.ratio_low > 1.2


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of 60 experiments about 57 should; fewer than 50 or never failing would be wrong."""
    dice = np.random.default_rng(7)
    held = 0
    for seed in range(60):
        one, two = dice.normal(0.0, 1.0, 200), dice.normal(0.3, 1.0, 200)
        found = compared(list(one), list(two), mean, seed=seed, rounds=400)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.3 <= found.high
    assert 50 <= held <= 60


@given(st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_quantiles_pass_over_what_was_not_measured(values: list[float | None], share: float) -> None:
    rows = np.array([[math.nan if value is None else value for value in values]])
    kept = [value for value in values if value is not None]
    found, middle = quantile_of(share)(rows)[0], mean(rows)[0]
    if kept:
        assert found == pytest.approx(np.quantile(kept, share), abs=1e-9)
        assert middle == pytest.approx(np.mean(kept), abs=1e-9)
    else:
        assert math.isnan(found)
        assert math.isnan(middle)


def test_what_was_not_measured_is_not_compared() -> None:
    assert compared([], [1.0], mean).difference is None
    assert compared([None, None], [1.0], mean).a is None
    part = compared([None, 2.0] * 40, [3.0] * 80, mean)
    assert (part.a, part.difference) == (2.0, 1.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50), st.integers(0, 3))
def test_the_same_seed_gives_the_same_interval(values: list[float], seed: int) -> None:
    one = compared(values, values[::-1], mean, seed=seed, rounds=50)
    assert one == compared(values, values[::-1], mean, seed=seed, rounds=50)
    assert one.difference == pytest.approx(0.0, abs=1e-9)
