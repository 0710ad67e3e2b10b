"""Which jobs to give up so that as few as possible are late.

One machine, jobs with a length and a due date: go through them in order of due dates; whenever one would end
too late, give up the longest so far. That leaves the fewest late jobs (J. M. Moore, "An n Job, One Machine
Sequencing Algorithm for Minimizing the Number of Late Jobs", Management Science 15, 1968; the form with a
heap is due to Hodgson). Serving by due date alone collapses under overload: each job waits just long enough
to be late.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Job(NamedTuple):
    """due_s: by when it should have ended; infinity: whenever. priority: larger ones are given up first."""

    work_s: float
    due_s: float
    priority: int = 0


def given_up(jobs: Iterable[tuple[K, Job]], start_s: float, machines: float = 1.0) -> set[K]:
    """Keys of the jobs that had better wait until the others are done. O(n log n).

    jobs: in order of due dates, those without one where they stand in the queue. start_s: when the machine is
    free. machines: several work off the one queue; taken to be one that is faster, a job needing its own time
    all the same.
    """
    lost: set[K] = set()
    worst: list[tuple[int, float, int, K]] = []
    ends_s = start_s
    for number, (key, job) in enumerate(jobs):
        share_s = job.work_s / machines
        if start_s + job.work_s > job.due_s:  # hopeless even as the first
            lost.add(key)
            continue
        ends_s += share_s
        if job.due_s < math.inf:
            heapq.heappush(worst, (-job.priority, -share_s, number, key))
        while worst and ends_s + job.work_s - share_s > job.due_s:
            _, less_s, _, victim = heapq.heappop(worst)
            ends_s += less_s
            lost.add(victim)
            if victim == key:
                break
    return lost
