"""Which jobs to give up so that as few as possible are late.

One machine, jobs with a length and a due date: go through them in order of due dates; whenever one would end
too late, give up the longest so far; of equals the one that is due first, as the others have more time to
spare for what was not foreseen. That leaves the fewest late jobs (J. M. Moore, "An n Job, One Machine
Sequencing Algorithm for Minimizing the Number of Late Jobs", Management Science 15, 1968; the form with a
heap is due to Hodgson). Serving by due date alone collapses under overload: each job waits just long enough
to be late.

On several machines, where that many jobs are no longer known to be the fewest, each goes to the one that is
free first, and whoever is given up leaves its own. Jobs are whole: eight machines that are free now start
eight at once, where one that is eight times as fast would start the eighth after seven others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Job(NamedTuple):
    """due_s: by when it should have ended; infinity: whenever. priority: larger ones are given up first."""

    work_s: float
    due_s: float
    priority: int = 0


def given_up(jobs: Iterable[tuple[K, Job]], free_s: float | Sequence[float], slower: float = 1.0) -> set[K]:
    """Keys of the jobs that had better wait until the others are done. O((n + m) log(n + m)).

    jobs: in the order in which they would be done. free_s: when the machine is free, or each of several: a
    job goes to whichever is free first, and one that is given up leaves its own free sooner. slower: so many
    times a job's work does it keep its machine, which has other things to do; it ends in time all the same.
    """
    machines = Machines([free_s] if isinstance(free_s, (int, float)) else free_s)
    first_s = machines.first_s
    lost: set[K] = set()
    worst: list[tuple[int, float, int, K, int]] = []  # of those that may be given up
    for number, (key, job) in enumerate(jobs):
        if first_s + job.work_s > job.due_s:  # hopeless even as the first
            lost.add(key)
            continue
        less: list[tuple[int, float, int, K, int]] = []
        rank = (-job.priority, -job.work_s)
        while machines.first_s + job.work_s > job.due_s and worst and worst[0][:2] <= rank:
            less.append(heapq.heappop(worst))
            machines.add(less[-1][4], slower * less[-1][1])
        if machines.first_s + job.work_s > job.due_s:  # for it all these would be given up in vain
            lost.add(key)
            for victim in less:
                machines.add(victim[4], -slower * victim[1])
                heapq.heappush(worst, victim)
            continue
        lost.update(victim[3] for victim in less)
        place = machines.first
        machines.add(place, slower * job.work_s)
        if job.due_s < math.inf:
            heapq.heappush(worst, (*rank, number, key, place))
    return lost


class Machines:
    """When each is free, and which is first. add: O(log n)."""

    def __init__(self, free_s: Sequence[float]) -> None:
        self._free_s = list(free_s)
        self._order = [(free_s, place) for place, free_s in enumerate(self._free_s)]
        heapq.heapify(self._order)

    @property
    def first(self) -> int:
        while self._order[0][0] != self._free_s[self._order[0][1]]:  # it has been added to since
            heapq.heappop(self._order)
        return self._order[0][1]

    @property
    def first_s(self) -> float:
        return self._free_s[self.first]

    def add(self, place: int, work_s: float) -> None:
        self._free_s[place] += work_s
        heapq.heappush(self._order, (self._free_s[place], place))


class Share:
    """Of all work, what goes to jobs that were given up, so that they do not starve.

    share: of others' work. most_owed, most_saved: in the unit of `spend`; bounds, so that neither a burst of
    jobs given up nor a long time without any is held against what comes next.
    """

    def __init__(self, share: float, *, most_owed: float, most_saved: float) -> None:
        self._share = share
        self._most_owed = most_owed
        self._most_saved = most_saved
        self._credit = 0.0

    @property
    def allows(self) -> bool:
        """One of them may go before the others."""
        return self._credit >= 0.0

    def spend(self, work: float, *, given_up: bool) -> None:
        credit = self._credit + (-work if given_up else self._share * work)
        self._credit = min(max(credit, -self._most_owed), self._most_saved)
