"""The rule for giving jobs up, against every other choice."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.lateness import Job, Share, given_up

jobs_of = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), max_size=8)


def late(jobs: list[Job], start_s: float) -> int:
    """Of jobs served in this order."""
    now, count = start_s, 0
    for job in jobs:
        now += job.work_s
        count += now > job.due_s
    return count


@given(jobs_of, st.integers(0, 5))
def test_no_choice_leaves_fewer_late(pairs: list[tuple[int, int]], start: int) -> None:
    jobs = sorted((Job(float(work), float(due)) for work, due in pairs), key=lambda job: job.due_s)
    lost = given_up(enumerate(jobs), start)
    kept = [job for i, job in enumerate(jobs) if i not in lost]
    assert late(kept, start) == 0
    for size in range(len(lost)):
        for other in combinations(range(len(jobs)), size):
            rest = [job for i, job in enumerate(jobs) if i not in other]
            assert late(rest, start) > 0, f"giving up {other} would have done"


def test_the_longest_goes_and_those_of_lower_priority_before() -> None:
    long, short = Job(5.0, 6.0), Job(2.0, 6.5)
    assert given_up([("long", long), ("short", short)], 0.0) == {"long"}
    low = Job(2.0, 6.5, priority=1)
    assert given_up([("long", long), ("low", low)], 0.0) == {"low"}


def test_without_a_due_date_nothing_is_given_up_but_its_work_counts() -> None:
    jobs = [("whenever", Job(5.0, math.inf)), ("soon", Job(2.0, 6.0))]
    assert given_up(jobs, 0.0) == {"soon"}
    assert given_up(jobs, [0.0, 0.0]) == set()


def test_of_equals_the_one_with_more_time_to_spare_is_kept() -> None:
    jobs = [("soon", Job(2.0, 3.0)), ("later", Job(2.0, 3.5)), ("last", Job(2.0, 3.9))]
    assert given_up(jobs, 0.0) == {"soon", "later"}
    assert given_up(jobs, [0.0, 0.0]) == {"soon"}


def test_what_is_too_late_even_alone_takes_nothing_from_others() -> None:
    assert given_up([("gone", Job(3.0, 2.0)), ("fine", Job(3.0, 3.0))], 0.0) == {"gone"}


def test_each_machine_takes_whole_jobs_from_when_it_is_free() -> None:
    """A job does not wait for its share of all that came before it, and not for what others do meanwhile."""
    jobs = [("first", Job(1.5, 3.0)), ("second", Job(4.0, 4.0))]
    assert given_up(jobs, [0.0, 0.0]) == set()
    assert given_up(jobs, [0.0, 1.0]) == {"second"}
    assert given_up(jobs, [0.0]) == {"second"}


def test_a_job_that_is_given_up_leaves_its_own_machine_free() -> None:
    jobs = [("long", Job(6.0, 6.0)), ("other", Job(5.0, 6.0)), ("short", Job(2.0, 3.0))]
    assert given_up(jobs, [0.0, 0.0]) == {"long"}


def test_nobody_is_given_up_for_one_that_is_late_all_the_same() -> None:
    jobs = [("kept", Job(3.0, 9.0)), ("late", Job(2.0, 1.0))]
    assert given_up(jobs, 0.0) == {"late"}
    behind = [("kept", Job(3.0, 3.0)), ("next", Job(2.0, 5.0)), ("late", Job(2.5, 4.0))]
    assert given_up(behind, 0.0) == {"late"}


def test_machines_that_do_other_things_besides_are_busy_for_longer() -> None:
    jobs = [("one", Job(2.0, 2.0)), ("two", Job(2.0, 5.0))]
    assert given_up(jobs, 0.0, slower=1.5) == set()
    assert given_up(jobs, 0.0, slower=2.0) == {"one"}


@given(jobs_of, st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_whoever_is_kept_can_be_in_time(pairs: list[tuple[int, int]], free: list[int]) -> None:
    jobs = sorted(
        (Job(float(work), float(due)) for work, due in pairs), key=lambda job: job.due_s - job.work_s
    )
    lost = given_up(enumerate(jobs), free)
    kept = [job for i, job in enumerate(jobs) if i not in lost]
    assert any(in_time(kept, places, free) for places in product(range(len(free)), repeat=len(kept)))


def in_time(jobs: list[Job], places: tuple[int, ...], free: list[int]) -> bool:
    """Whether all are, each on its machine."""
    ends = [float(when) for when in free]
    for job, place in zip(jobs, places, strict=True):
        ends[place] += job.work_s
        if ends[place] > job.due_s:
            return False
    return True


def test_those_given_up_get_their_share_and_no_more() -> None:
    share = Share(0.1, most_owed=60.0, most_saved=1.0)
    got = {True: 0.0, False: 0.0}
    for _ in range(1100):
        given_up = share.allows
        share.spend(2.0, given_up=given_up)
        got[given_up] += 2.0
    assert got[True] / got[False] == pytest.approx(0.1, rel=0.02)


def test_neither_what_is_saved_nor_what_is_owed_grows_without_bound() -> None:
    share = Share(0.1, most_owed=5.0, most_saved=1.0)
    share.spend(1000.0, given_up=False)
    share.spend(1.5, given_up=True)
    assert not share.allows
    share.spend(1000.0, given_up=True)
    share.spend(51.0, given_up=False)
    assert share.allows
