"""In which order a node computes prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from baton.core.lateness import Job as Work
from baton.core.lateness import Share, given_up
from baton.prefill_node.jobs import Job
from baton.prefill_node.limits import PrefillLimits

MOST_MOVED = 8  # more than fit into a step
MOST_OWED, MOST_SAVED = 1e5, 1e4  # tokens, by and to those in vain
MARGIN = 0.05  # of the time to a target is kept in hand where others go first


class Queue:
    """By due date, work in vain last (see core.lateness); or first come, first served.

    A prompt without a target is due after `patience` times its own predicted time, so short ones go first and
    none starves. One that is behind because it was in vain gets a share of the tokens once it has waited
    `late_wait_s`.
    """

    def __init__(self, limits: PrefillLimits) -> None:
        self._limits = limits
        self._share = Share(limits.late_share, most_owed=MOST_OWED, most_saved=MOST_SAVED)
        self.token_s = limits.token_s

    def sorted(self, jobs: Iterable[Job], now: float) -> list[Job]:
        jobs = list(jobs)
        if len(jobs) < 2:
            return jobs
        if self._limits.order == "fcfs":
            return sorted(jobs, key=self._arrival)
        by_due = sorted(jobs, key=self._rank)
        if all(job.seq.request.slo.ttft_s is None for job in by_due):
            return by_due
        by_target = sorted(by_due, key=_target_s)
        work = ((job, Work(self._work_s(job), _target_s(job), job.seq.request.priority)) for job in by_target)
        lost = given_up(work, now)
        behind = sorted(lost, key=self._arrival)
        first = self._harmless([job for job in by_due if job not in lost], now)
        if behind and self._share.allows and now - behind[0].seq.arrived_s > self._limits.late_wait_s:
            return [behind[0], *first, *behind[1:]]
        return first + behind

    def _harmless(self, by_rank: list[Job], now: float) -> list[Job]:
        """By due date, but for those that may go earlier, by rank, without making another one late. A prompt
        that is under way gains rank with each chunk of others: without this they would all end late."""
        left = sorted(by_rank, key=self._due)
        order: list[Job] = []
        start_s = now
        while len(left) > 1 and len(order) < MOST_MOVED:
            best, room_s, end_s = left[0], math.inf, start_s
            for job in left:
                work_s = self._work_s(job)
                if work_s <= room_s and self._rank(job) < self._rank(best):
                    best = job
                end_s += work_s
                spare_s = _target_s(job) - MARGIN * (_target_s(job) - job.seq.arrived_s) - end_s
                if math.isfinite(spare_s):
                    room_s = min(room_s, max(0.0, spare_s))
            left.remove(best)
            order.append(best)
            start_s += self._work_s(best)
        return order + left

    def spend(self, job: Job, tokens: int, now: float) -> None:
        """It gets so many in this step."""
        self._share.spend(tokens, given_up=now + self._work_s(job) > _target_s(job))

    def _work_s(self, job: Job) -> float:
        return job.to_compute * self.token_s

    def _arrival(self, job: Job) -> tuple[float, int]:
        return job.seq.arrived_s + job.seq.request.priority * self._limits.priority_s, job.number

    def _due(self, job: Job) -> tuple[float, int]:
        target_s = _target_s(job)
        if target_s == math.inf:
            return self._rank(job)
        return target_s + job.seq.request.priority * self._limits.priority_s, job.number

    def _rank(self, job: Job) -> tuple[float, int]:
        """The latest instant at which the prompt should go before newer ones."""
        seq, limits = job.seq, self._limits
        work_s = self._work_s(job)
        due_s = min(seq.arrived_s + limits.patience * work_s, max(seq.arrived_s, _target_s(job) - work_s))
        if seq.deadline_s is not None:
            due_s = min(due_s, max(seq.arrived_s, seq.deadline_s - work_s))
        return due_s + seq.request.priority * limits.priority_s, job.number


def _target_s(job: Job) -> float:
    """When its first token should be out. A retry's is."""
    request = job.seq.request
    if request.slo.ttft_s is None or request.output_ids:
        return math.inf
    return job.seq.arrived_s + request.slo.ttft_s - request.waited_s
