"""The search for the highest rate, on functions and on a small simulated cluster; and what tables say."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.request import Slo
from baton.sim.experiments import search
from baton.sim.experiments.compare import compare
from baton.sim.experiments.compare_page import compare_page, table_rows
from baton.sim.experiments.contenders import ABLATIONS, BATON, ORACLE, PUBLISHED
from baton.sim.experiments.point import Point, run_point
from baton.sim.experiments.search import Search, bound_rate, highest_rate, likely
from baton.sim.experiments.setting import MOST_REQUESTS, Setting, Split, setting_from
from baton.sim.profiles import profile
from baton.sim.workload import arrivals, lengths

PROFILE = profile("llama-3.1-8b@h100")
SLO = Slo(ttft_s=0.5, tpot_s=0.03)


def setting(requests: int = 60, nodes: int = 3, prompt: int = 4000, output: int = 20) -> Setting:
    trace = islice(arrivals.poisson(1.0, lengths.fixed(prompt, output), seed=1), requests)
    return Setting("small", tuple(arrivals.with_slo(trace, SLO)), SLO, PROFILE, nodes)


@given(st.floats(1e-2, 1e4), st.floats(0.1, 100.0))
def test_the_highest_rate_is_found_from_wherever_it_begins(limit, start):
    found = highest_rate(lambda rate: rate <= limit, start, 0.05)
    if start / 100 < limit < start * 100:
        assert found <= limit < found * 1.06


def test_no_rate_at_all_is_zero():
    assert highest_rate(lambda rate: False, 1.0, 0.1) == 0.0


@pytest.mark.parametrize("contender", [*PUBLISHED, BATON, *ABLATIONS, ORACLE], ids=lambda each: each.name)
def test_every_contender_serves_a_light_load_in_time(contender):
    for split in contender.splits(setting())[:: len(contender.splits(setting())) - 1]:
        point = run_point(contender, setting(20), split, 1.0)
        assert point.attained == 1.0
        assert point.goodput_rps == pytest.approx(1.0)
        assert 0.0 < point.ttft_p50_s < 0.5


def test_a_hopeless_run_ends_early_and_says_so():
    point = run_point(PUBLISHED[0], setting(200), Split(1, 2), 40.0, least=0.9)
    assert not point.whole
    assert run_point(PUBLISHED[0], setting(20), Split(1, 2), 40.0).attained < 0.9


def test_a_rate_counts_only_if_it_lasts():
    brief = setting(30, prompt=1100)
    assert brief.least_span_s == pytest.approx(10.0)
    for rate in (1.0, 40.0, 400.0, 5000.0):
        long = brief.lasting(rate)
        times = [arrival.at_s for arrival in long.at(rate)]
        assert times == sorted(times)
        assert times[-1] >= min(0.99 * brief.least_span_s, 0.99 * MOST_REQUESTS / rate)
        assert len(times) <= max(30, MOST_REQUESTS + 30)
    slow = replace(brief, slo=Slo(ttft_s=2.0, tpot_s=1.0))
    assert slow.least_span_s == pytest.approx(60.0)  # three answers of 20 tokens
    assert brief.most_rate == pytest.approx(MOST_REQUESTS / 10.0)


def test_no_burst_is_taken_for_a_rate():
    """Thirty prompts at once are in time; nobody could take as many all the time."""
    brief = setting(30, prompt=1100, nodes=2)
    peak = 2 / (1100 * 2 * 8e9 / 1e15)  # two H100, for the prompts alone
    assert Search(PUBLISHED[2], brief, 0.3).best(10.0).rate < peak
    assert bound_rate(brief, 0.1) < peak


def test_rounds_of_a_repeated_load_share_no_prefix():
    shared = arrivals.shared_prefixes(setting(30).arrivals, 2, 1024, seed=1)
    long = replace(setting(30), arrivals=tuple(shared)).lasting(20.0)
    rounds = [long.arrivals[i : i + 30] for i in range(0, len(long.arrivals), 30)]
    ids = [{block for arrival in each for block in arrival.prefix} for each in rounds]
    assert len(rounds) > 2
    assert not set.intersection(ids[0], ids[1])


def test_prompts_get_the_nodes_where_prompts_are_the_work():
    found = Search(PUBLISHED[2], setting(), 0.2).best(10.0)
    assert found.split == Split(2, 1)
    assert found.rate > 1.0
    assert likely(setting().splits(), setting()) == Split(2, 1)
    assert found.rate < bound_rate(setting())
    answers = setting(prompt=100, output=400, nodes=3)
    assert likely(answers.splits(), answers) == Split(1, 2)


def test_nodes_that_do_both_are_looked_at_though_their_neighbours_are_no_better(monkeypatch):
    """A climb from dedicated pools does not come to them."""
    best = {Split(2, 1): 2.0, Split(0, 0, 3): 5.0}

    def run(contender, setting, split, rate, *, least):
        return Point("", str(split), rate, 1.0 if rate <= best.get(split, 1.0) else 0.0)

    monkeypatch.setattr(search, "run_point", run)
    found = Search(BATON, setting(), 0.1).best(10.0)
    assert found.split == Split(0, 0, 3)
    assert 4.5 <= found.rate <= 5.0
    best[Split(2, 1)] = 8.0
    assert Search(BATON, setting(), 0.1).best(10.0).split == Split(2, 1)


def test_a_table_of_a_small_comparison():
    told: list[tuple[int, int, str]] = []
    contenders = [PUBLISHED[0], BATON]
    [table] = compare([setting(40, nodes=2)], contenders, 0.3, 1, lambda *what: told.append(what))
    assert [done for done, _, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1]
    assert table.best_published == "random"
    assert table.bound > table.row("Baton").highest > 0.0
    assert table.row("random").at_best.attained >= 0.9
    assert table.row("random").at_half.rate == pytest.approx(table.published_rate / 2)
    head, first, second = table_rows(table)
    assert len(head) == len(first)
    assert (first[0], second[0]) == ("Baton", "random")
    assert "× " in compare_page([table])


def test_a_trace_becomes_a_setting_with_the_targets_of_its_kind(tmp_path):
    path = tmp_path / "azure_small.csv"
    rows = [f"2023-11-16 18:17:{i:02d},{100 + i},10" for i in range(5)] + ["2023-11-16 18:18:00,9000000,10"]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    found = setting_from(path, PROFILE, 4, None)
    assert len(found.arrivals) == 5  # no node could hold the sixth
    assert found.arrivals[0].slo == found.slo != Slo()
    assert found.rate == pytest.approx(1.0)
    assert [a.at_s for a in found.at(10.0)] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert len(setting_from(path, PROFILE, 4, 3).arrivals) == 3
