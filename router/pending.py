"""Requests that wait at the router, in the order in which they should go.

By the latest start that lets the first token meet its target; without one, a wait of PATIENCE times its own
work puts any before all that come later. Each level of priority counts `aging_s`.
Those that cannot meet their target any more, or whose giving up lets more others meet theirs (see
core.lateness), wait behind all others, in the order of arrival: under overload the targets of most are met,
not of none. They do not starve: having waited long enough they get a share of the work done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from baton.core.lateness import Job, Share, given_up
from baton.router.live import Live
from baton.router.machine_config import RouterConfig
from baton.router.order import Order

MOST_SORTED = 256  # of a longer queue only the first are looked at
TRIAGE_EVERY_S = 0.01
PATIENCE = 4.0
MOST_OWED_S, MOST_SAVED_S = 60.0, 1.0  # of work, by and to those in vain


class Pending:
    """Each request is in `_timely` or `_late`. Iteration is in the order in which they should go."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._by_slack = config.order == "slack"
        self._timely: Order[Live] = Order()
        self._late: Order[Live] = Order()
        self._made = 0
        self._targets = 0  # requests here that have one for the first token
        self._sorted_s = -math.inf
        self._share = Share(config.late_share, most_owed=MOST_OWED_S, most_saved=MOST_SAVED_S)
        self._tokens = {True: 0, False: 0}  # prompt tokens of the timely, and of the late ones

    def __len__(self) -> int:
        return len(self._timely) + len(self._late)

    def __iter__(self) -> Iterator[Live]:
        return chain(self._timely, self._late)

    def __contains__(self, live: Live) -> bool:
        return live in self._timely or live in self._late

    @property
    def last(self) -> Live:
        """Who goes last, as it looks now."""
        return (self._late or self._timely).last

    def is_late(self, live: Live) -> bool:
        return live in self._late

    def before(self, live: Live) -> tuple[int, int]:
        """(requests, prompt tokens) that go before it, or with it: of those in vain only if it is one."""
        if live in self._timely:
            return len(self._timely), self._tokens[True]
        return len(self), self._tokens[True] + self._tokens[False]

    def push(self, live: Live, work_s: float, now: float) -> None:
        """work_s: of its prompt's computation, as far as can be told."""
        assert live not in self
        self._made += 1
        live.number, live.work_s = self._made, work_s
        self._targets += live.due_s is not None
        timely = not self._by_slack or now + work_s <= self._due_s(live)
        self._tokens[timely] += live.request.prefill_tokens
        if timely:
            self._timely.put(live, self._rank(live), live.number)
        else:
            self._late.put(live, self._arrival(live), live.number)

    def remove(self, live: Live) -> None:
        """Unknown ones are no error."""
        if live not in self:
            return
        self._tokens[live in self._timely] -= live.request.prefill_tokens
        self._timely.drop(live)
        self._late.drop(live)
        self._targets -= live.due_s is not None

    def spend(self, live: Live) -> None:
        """It is sent: the late ones earn a share of what others get."""
        self._share.spend(live.work_s, given_up=live in self._late)

    def triage(self, now: float, free_s: Sequence[float], slower: float) -> None:
        """Tell those that wait in vain from the rest. free_s: when each of the nodes is free, the first of
        them; slower: so many times a prompt's work does it keep a node, which decodes besides."""
        if not (self._by_slack and self._targets and free_s) or now - self._sorted_s < TRIAGE_EVERY_S:
            return
        self._sorted_s = now
        jobs = [
            (live, Job(live.work_s, self._due_s(live), live.request.priority)) for live in self._in_order()
        ]
        lost = given_up(jobs, [max(now, when) for when in free_s], slower)
        for live, _ in jobs:
            if (live in lost) == (live in self._late):
                continue
            tokens = live.request.prefill_tokens
            if live in lost:
                self._timely.drop(live)
                self._late.put(live, self._arrival(live), live.number)
                tokens = -tokens
            else:
                self._late.drop(live)
                self._timely.put(live, self._rank(live), live.number)
            self._tokens[True] += tokens
            self._tokens[False] -= tokens

    def hopeless(self, now: float) -> list[Live]:
        """Those that would be late even if they started now, and have shown nothing yet."""
        return [
            live
            for live in self._late
            if live.due_s is not None
            and now + live.work_s > live.due_s
            and not (live.output or live.request.attempt)
        ]

    def heads(self, now: float, most: int) -> list[Live]:
        """The first `most` requests to try, in order."""
        first = list(islice(self, most))
        if self._timely and self._late and self._share.allows:
            oldest = next(iter(self._late))
            if now - oldest.facts.arrived_s > self._config.late_wait_s:
                first = [oldest, *(live for live in first if live is not oldest)][:most]
        return first

    def _in_order(self) -> list[Live]:
        """As they would go, the late ones among them: things may have become better."""
        some = list(islice(self._timely, MOST_SORTED)) + list(islice(self._late, MOST_SORTED))
        return sorted(some, key=lambda live: (self._rank(live), live.number))

    def _due_s(self, live: Live) -> float:
        """When its first token should be out, with a margin: what is planned to be just in time is late."""
        if live.due_s is None:
            return math.inf
        margin_s = self._config.margin * (live.due_s - live.facts.arrived_s)
        return live.due_s - margin_s

    def _rank(self, live: Live) -> float:
        if not self._by_slack:
            return self._arrival(live)
        if live.due_s is None:
            start_s = live.facts.arrived_s + PATIENCE * live.work_s
        else:
            start_s = self._due_s(live) - live.work_s
        return start_s + live.request.priority * self._config.aging_s

    def _arrival(self, live: Live) -> float:
        return live.facts.arrived_s + live.request.priority * self._config.aging_s

    def check(self) -> None:
        self._timely.check()
        self._late.check()
        assert not any(live in self._late for live in self._timely)
        for timely, order in ((True, self._timely), (False, self._late)):
            assert self._tokens[timely] == sum(live.request.prefill_tokens for live in order)
        assert self._targets == sum(live.due_s is not None for live in self)
