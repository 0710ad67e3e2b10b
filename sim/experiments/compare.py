"""All contenders on all settings: who serves how much in time. Work goes to several processes.

Per setting: every contender's highest rate at the wanted attainment, with the best split found for it
(roughly, for published policies out of contention); then all at the rate where the best published one sits,
and those that matter at half of it, on the same requests and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from baton.sim.experiments.contenders import Contender
from baton.sim.experiments.point import Point, run_point
from baton.sim.experiments.search import Highest, Search, bound_rate
from baton.sim.experiments.setting import Setting, Split

SHARES = (1.0, 0.5)  # of the best published policy's rate
ROUGH = 0.25  # precision at which it is decided who may be the best
Progress = Callable[[int, int, str], None]
"""(done, of how many, what was done last)."""


@dataclass(frozen=True, slots=True)
class Row:
    """highest: the contender's own rate at the attainment. at_best: at the best published policy's rate.
    at_half: at half of it; None for the other published ones."""

    contender: str
    kind: str
    split: str
    highest: float
    at_best: Point
    at_half: Point | None


@dataclass(frozen=True, slots=True)
class Table:
    """bound: a rate that no schedule can exceed."""

    setting: str
    requests: int
    ttft_s: float | None
    tpot_s: float | None
    profile: str
    nodes: int
    attainment: float
    seed: int
    bound: float
    best_published: str
    rows: tuple[Row, ...]

    def row(self, contender: str) -> Row | None:
        return next((row for row in self.rows if row.contender == contender), None)

    @property
    def perfect(self) -> float:
        """The highest rate of the contender that knows all, or what no schedule can exceed."""
        return next((row.highest for row in self.rows if row.kind == "oracle"), self.bound)

    @property
    def published_rate(self) -> float:
        row = self.row(self.best_published)
        return row.highest if row else 0.0


def compare(
    settings: Sequence[Setting],
    contenders: Sequence[Contender],
    precision: float,
    workers: int,
    progress: Progress,
) -> list[Table]:
    """Raises whatever a run raises."""
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            return _Study(settings, contenders, precision, pool, progress).tables()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def find_highest(
    contender: Contender, setting: Setting, precision: float, start: float, split: Split | None = None
) -> Highest:
    """Of one contender, with one split or the best; runs in a process of its own."""
    return Search(contender, setting, precision).best(start, [split] if split else None)


_Job = tuple[int, Contender, float, Split | None, float]
"""(setting's number, contender, rate to begin with, split or None for the best, precision)."""


class _Study:
    """One comparison under way."""

    def __init__(
        self,
        settings: Sequence[Setting],
        contenders: Sequence[Contender],
        precision: float,
        pool: Executor,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._work = [(i, c) for i in range(len(settings)) for c in contenders]
        self._precision = precision
        self._pool = pool
        self._progress = progress
        self._done = 0
        self._planned = len(self._work)
        self._highest: dict[tuple[int, str], Highest] = {}
        self._points: dict[tuple[int, str, float], Point] = {}

    def tables(self) -> list[Table]:
        every = range(len(self._settings))
        bounds = [bound_rate(setting) for setting in self._settings]
        published = [(i, c) for i, c in self._work if c.kind == "baseline"]
        coarse = max(ROUGH, self._precision)
        self._search([(i, c, bounds[i] / 3, None, coarse) for i, c in published])
        self._refine(published)
        others = [each for each in self._work if each not in published]
        starts = [self._best_published(i).rate if published else bounds[i] / 2 for i in every]
        self._search([(i, c, starts[i], None, self._precision) for i, c in others])
        best = [self._best_published(i) for i in every]
        self._compare(best)
        return [self._table(i, bounds[i], best[i].contender) for i in every]

    def _refine(self, published: Sequence[tuple[int, Contender]]) -> None:
        """Those that may be the best, to the precision asked for."""
        todo: list[_Job] = []
        for i, contender in published:
            found = self._highest[i, contender.name]
            if found.rate * (1.0 + ROUGH) >= self._best_published(i).rate > 0.0:
                todo.append((i, contender, found.rate, found.split, self._precision))
        self._planned += len(todo)
        self._search(todo)

    def _search(self, todo: Sequence[_Job]) -> None:
        jobs = {
            self._pool.submit(find_highest, c, self._settings[i], precision, start, split): (i, c)
            for i, c, start, split, precision in todo
        }
        for future in as_completed(jobs):
            i, contender = jobs[future]
            found = self._highest[i, contender.name] = future.result()
            self._tell(f"{self._settings[i].name}: {contender.name} {found.rate:.3g}/s with {found.split}")

    def _compare(self, best: Sequence[Highest]) -> None:
        jobs = {}
        for i, contender in self._work:
            split = self._highest[i, contender.name].split
            matters = contender.kind != "baseline" or contender.name == best[i].contender
            for share in SHARES if matters else SHARES[:1]:
                rate = share * best[i].rate
                job = self._pool.submit(run_point, contender, self._settings[i], split, rate)
                jobs[job] = (i, contender, share)
        self._planned += len(jobs)
        for future in as_completed(jobs):
            i, contender, share = jobs[future]
            point = self._points[i, contender.name, share] = future.result()
            said = f"{contender.name} {point.attained:.1%} at {point.rate:.3g}/s"
            self._tell(f"{self._settings[i].name}: {said}")

    def _best_published(self, i: int) -> Highest:
        names = [c.name for j, c in self._work if j == i and c.kind == "baseline"]
        names = names or [c.name for j, c in self._work if j == i]
        return max((self._highest[i, name] for name in names), key=lambda found: found.rate)

    def _table(self, i: int, bound: float, best: str) -> Table:
        setting = self._settings[i]
        rows = [
            Row(
                contender=c.name,
                kind=c.kind,
                split=str(self._highest[i, c.name].split),
                highest=self._highest[i, c.name].rate,
                at_best=self._points[i, c.name, SHARES[0]],
                at_half=self._points.get((i, c.name, SHARES[1])),
            )
            for j, c in self._work
            if j == i
        ]
        return Table(
            setting=setting.name,
            requests=len(setting.arrivals),
            ttft_s=setting.slo.ttft_s,
            tpot_s=setting.slo.tpot_s,
            profile=setting.profile.name,
            nodes=setting.nodes,
            attainment=setting.attainment,
            seed=setting.seed,
            bound=bound,
            best_published=best,
            rows=tuple(rows),
        )

    def _tell(self, what: str) -> None:
        self._done += 1
        self._progress(self._done, max(self._planned, 2 * len(self._work)), what)
