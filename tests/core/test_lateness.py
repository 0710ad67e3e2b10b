"""The rule for giving jobs up, against every other choice."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from baton.core.lateness import Job, given_up

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
    assert given_up(jobs, 0.0, machines=2) == set()


def test_what_is_too_late_even_alone_takes_nothing_from_others() -> None:
    assert given_up([("gone", Job(3.0, 2.0)), ("fine", Job(3.0, 3.0))], 0.0) == {"gone"}
