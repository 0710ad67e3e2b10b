"""Runs in turn: several targets, rates and rounds.

Machines drift by tenths within an hour, so targets that are to be compared take turns: each round goes
through all targets before the next begins, and begins with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from baton.bench.load.one_run import Settings, Show, Turn, run
from baton.bench.load.plan import Writer
from baton.bench.load.results import Found, Run
from baton.bench.load.search import RateSearch
from baton.bench.load.summary import summarise
from baton.bench.load.target import Target

Keep = Callable[[Run], None]
"""Is given each run when it is over."""


class Experimenter:
    """In a round, requests of the same lengths come at the same times for all targets. No two runs share a
    prompt: two targets may be two doors of one deployment, which would know the prompts of the first from its
    cache."""

    def __init__(
        self,
        targets: Sequence[Target],
        writers: Mapping[str, Writer],
        settings: Settings,
        keep: Keep,
        show: Show = lambda *args: None,
    ) -> None:
        self._targets = targets
        self._writers = writers
        self._settings = settings
        self._keep = keep
        self._show = show
        self._turns = 0

    async def rates(self, rates: Sequence[float | None]) -> None:
        """Every target at every rate, round by round."""
        for number in range(self._settings.rounds):
            for rate in rates:
                for target in _rotated(self._targets, number):
                    await self._run(target, rate, number)

    async def find(self, start: float, precision: float) -> list[Found]:
        """The highest rate of every target that keeps the attainment, the targets' searches in turn."""
        searches = {target.name: RateSearch(start, precision) for target in self._targets}
        kept: dict[tuple[str, float], float] = {}
        number = 0
        while any(search.next_rate() is not None for search in searches.values()):
            for target in _rotated(self._targets, number):
                search = searches[target.name]
                if (rate := search.next_rate()) is not None:
                    goodput = await self._try(target, rate)
                    search.tell(rate, goodput is not None)
                    kept[target.name, rate] = goodput or 0.0
            number += 1
        return [
            Found(name, search.best, search.failed, kept.get((name, search.best), 0.0))
            for name, search in searches.items()
        ]

    async def _try(self, target: Target, rate: float) -> float | None:
        """The goodput of all rounds at one rate; None: the attainment is not kept. The first round that is
        beyond hope ends it. One whose generator was late is run once more."""
        records, window_s = [], 0.0
        for number in range(self._settings.rounds):
            found = await self._run(target, rate, number, hopeless=True)
            if found.invalid:
                found = await self._run(target, rate, number, hopeless=True)
            if found.stopped_s is not None:
                return None
            records += found.counted
            window_s += found.until_s - found.from_s
        goodput = summarise(records, window_s).goodput
        return goodput.rate if goodput.attainment >= self._settings.attainment else None

    async def _run(self, target: Target, rate: float | None, number: int, *, hopeless: bool = False) -> Run:
        self._turns += 1
        turn = Turn(rate, number, self._turns, hopeless)
        found = await run(target, self._writers[target.name], self._settings, turn, self._show)
        self._keep(found)
        return found


def _rotated(targets: Sequence[Target], by: int) -> list[Target]:
    start = by % len(targets)
    return [*targets[start:], *targets[:start]]
