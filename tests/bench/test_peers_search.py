"""One server's searches under several targets: what a run answers, and what it does not."""

from __future__ import annotations

import pytest

from baton.bench.load.record import Outcome, Record
from baton.bench.load.results import Run
from baton.bench.load.spread import spread
from baton.bench.load.summary import summarise
from baton.bench.peers_search import Hunt
from baton.core.request import Slo

GOALS = [Slo(2.0, 0.100), Slo(2.0, 0.050), Slo(2.0, 0.025)]
WINDOW_S = 40.0


def _run(rate: float, number: int, goal: Slo, tpot_s: float, *, stopped_s: float | None = None) -> Run:
    records = []
    for i in range(int(rate * WINDOW_S)):
        at_s = i / rate
        chunks = [(at_s + 0.1, 1), (at_s + 0.1 + tpot_s, 1)]
        done = Record(i, at_s, 256, 2, goal, at_s, chunks[-1][0], Outcome.OK, chunks, 2)
        records.append(done)
    summary = summarise(records, WINDOW_S)
    nothing = spread([])
    return Run("x", rate, number, 0, 0.0, WINDOW_S, "", nothing, nothing, "", stopped_s, records, summary)


def _hunt(*, told: bool, rounds: int = 1, precision: float = 0.1) -> Hunt:
    return Hunt(GOALS, 1.0, precision, rounds, 0.9, told)


def _answer(hunt: Hunt, tpot_s_per_rate: float, *, cut: bool = False) -> int:
    """Runs that it took, of a server whose TPOT grows with the rate."""
    count = 0
    while (wanted := hunt.next_run()) is not None:
        goal, rate, number = wanted
        tpot_s = tpot_s_per_rate * rate
        hopeless = cut and tpot_s > (goal.tpot_s or 0.0)
        hunt.add(goal, _run(rate, number, goal, tpot_s, stopped_s=5.0 if hopeless else None))
        count += 1
        assert count < 100
    return count


def test_the_last_run_counts_where_the_time_is_over() -> None:
    hunt = _hunt(told=True)
    for _ in range(2):
        wanted = hunt.next_run()
        assert wanted is not None
        goal, rate, number = wanted
        hunt.add(goal, _run(rate, number, goal, 0.0))
    assert hunt.found("x")[0].rate == rate > hunt.start


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_each_target_gets_its_own_rate(told: bool, cut: bool) -> None:
    hunt = _hunt(told=told)
    _answer(hunt, 0.020, cut=cut)
    for goal, found in zip(GOALS, hunt.found("x"), strict=True):
        limit = (goal.tpot_s or 0.0) / 0.020
        assert found.failed_rate is not None
        assert limit / 1.1 <= found.rate <= limit < found.failed_rate


def test_a_server_that_knows_no_targets_is_asked_less_often() -> None:
    assert _answer(_hunt(told=False), 0.020) < _answer(_hunt(told=True), 0.020)


def test_every_rate_is_run_in_every_round() -> None:
    hunt = _hunt(told=False, rounds=3)
    _answer(hunt, 0.020)
    rounds: dict[float, list[int]] = {}
    for _, run in hunt.runs:
        rounds.setdefault(run.rate, []).append(run.round)
    assert set(map(tuple, rounds.values())) == {(0, 1, 2)}


def test_a_run_that_was_cut_says_nothing_of_looser_targets() -> None:
    hunt = _hunt(told=False)
    hunt.add(GOALS[1], _run(1.0, 0, GOALS[1], 0.060, stopped_s=5.0))
    assert hunt.judged(GOALS[0]) == []
    assert len(hunt.judged(GOALS[1])) == len(hunt.judged(GOALS[2])) == 1
    assert hunt.next_run() == (GOALS[0], 1.0, 0)


def test_none_holds_where_none_does() -> None:
    hunt = _hunt(told=False)
    _answer(hunt, 1.0)
    assert [found.rate for found in hunt.found("x")] == [0.0] * 3
