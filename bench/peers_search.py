"""One server's highest rates under several pairs of targets, from as few runs as answer all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton.bench.load.results import Found, Run
from baton.bench.load.search import RateSearch
from baton.bench.load.summary import summarise
from baton.core.request import Slo

LEAST_RATE = 0.25
COARSE = 0.5  # first within so much, then finely: so all have an answer early


@dataclass(slots=True)
class Hunt:
    """Searches for one server, of targets that get tighter: a run serves all of those that it can answer.

    told: the server knows a request's targets and acts on them, so that a run says nothing of others.
    """

    goals: Sequence[Slo]
    start: float
    precision: float
    rounds: int
    attainment: float
    told: bool
    runs: list[tuple[Slo, Run]] = field(default_factory=list)
    _searches: dict[Slo, RateSearch] = field(default_factory=dict)

    def next_run(self) -> tuple[Slo, float, int] | None:
        """Targets, rate and round of the run that is wanted most; None: all is known."""
        for precision in (max(COARSE, self.precision), self.precision):
            for goal in self.goals:
                search = self._search(goal)
                search.precision = precision
                while (rate := search.next_rate()) is not None:
                    kept = self._kept(goal, rate)
                    if kept is None:
                        return goal, rate, len(self._of(goal, rate))
                    search.tell(rate, kept)
        return None

    def add(self, goal: Slo, run: Run) -> None:
        self.runs.append((goal, run))

    def found(self, name: str) -> list[Found]:
        """By target: as far as it is known by now."""
        self.next_run()  # so that the searches know of the last run
        result = []
        for goal in self.goals:
            search = self._searches.get(goal)
            best = search.best if search else 0.0
            rate = self._goodput(goal, best)[1] if best else 0.0
            result.append(Found(name, best, search.failed if search else None, rate))
        return result

    def judged(self, goal: Slo) -> list[Run]:
        """All runs that say something of these targets, by them. One that was ended early, as beyond hope,
        says that tighter targets would have been missed, too, and nothing of looser ones."""
        looser = self.goals[: self.goals.index(goal) + 1]
        return [
            _by(goal, run)
            for sent, run in self.runs
            if sent == goal or (not self.told and (run.stopped_s is None or sent in looser))
        ]

    def _search(self, goal: Slo) -> RateSearch:
        """A tighter target's begins where the looser one's has got to."""
        if goal not in self._searches:
            before = [search.best for search in self._searches.values() if search.best]
            start = before[-1] if before else self.start
            self._searches[goal] = RateSearch(start, self.precision, LEAST_RATE)
        return self._searches[goal]

    def _kept(self, goal: Slo, rate: float) -> bool | None:
        """None: further rounds have to say. One round beyond hope says it for all."""
        runs = self._of(goal, rate)
        if any(run.stopped_s is not None for run in runs):
            return False
        if len(runs) < self.rounds:
            return None
        return self._goodput(goal, rate)[0] >= self.attainment

    def _goodput(self, goal: Slo, rate: float) -> tuple[float, float]:
        """Attainment, and requests per second within the targets, of all rounds."""
        runs = self._of(goal, rate)
        window_s = sum(run.until_s - run.from_s for run in runs)
        found = summarise([record for run in runs for record in run.counted], window_s).goodput
        return found.attainment, found.rate

    def _of(self, goal: Slo, rate: float) -> list[Run]:
        return [run for run in self.judged(goal) if run.rate == rate]


def _by(goal: Slo, run: Run) -> Run:
    judged = replace(run, records=[replace(record, slo=goal) for record in run.records])
    return replace(judged, summary=summarise(judged.counted, run.until_s - run.from_s))
