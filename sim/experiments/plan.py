"""Which nodes, of which parallel degree and in which roles, serve the most requests per device in time?

The form is that of DistServe's placement search (Zhong et al., OSDI 2024, algorithm 1): degrees of prefill
and of decode are searched apart, since the one wants short prompts and the other room and bandwidth. All ways
to spend the devices are ranked by an estimate (`sim.experiments.estimate`). Of every pair of kinds the
likeliest split stands for it; the best pairs are simulated, each up to the highest rate that it keeps, as
long as their bound is above what was found; then the winner's neighbouring splits, and the winner with the
other admission policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.contenders import Contender
from baton.sim.experiments.estimate import Ability, Estimate, alike, pools
from baton.sim.experiments.search import Search
from baton.sim.experiments.setting import Setting, Split
from baton.sim.spec import Profile
from baton.sim.workload.arrival import Arrival

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """decode: None: the same profile as prefill (or all nodes do both)."""

    split: Split
    prefill: Profile
    decode: Profile | None
    estimate: Estimate

    @property
    def devices(self) -> float:
        return (
            self.split.prefill + self.split.both
        ) * self.prefill.gpus + self.split.decode * self.second.gpus

    @property
    def second(self) -> Profile:
        """Of decode nodes."""
        return self.decode or self.prefill

    @property
    def pools(self) -> tuple[tuple[int, str, Profile], ...]:
        """(nodes, role, kind) of the roles that there are."""
        split = self.split
        all_roles = (
            (split.prefill, "prefill", self.prefill),
            (split.decode, "decode", self.second),
            (split.both, "both", self.prefill),
        )
        return tuple(pool for pool in all_roles if pool[0])

    @property
    def family(self) -> tuple[str, ...]:
        """What layouts have in common that differ in how many nodes of each kind there are."""
        return tuple(f"{role} {kind.name}" for _, role, kind in self.pools)

    def __str__(self) -> str:
        return ", ".join(f"{count} {role} on {kind.name}" for count, role, kind in self.pools)


@dataclass(frozen=True, slots=True)
class Tried:
    """A layout as simulated. rate: requests per second of which the wanted share meets the targets; the
    percentiles are those at that rate."""

    layout: Layout
    admission: str
    rate: float
    ttft_p90_s: float = float("nan")
    tpot_p90_s: float = float("nan")

    @property
    def per_device(self) -> float:
        return self.rate / self.layout.devices

    @property
    def rank(self) -> tuple[float, float, bool]:
        return self.per_device, self.rate, self.admission == "defer"


@dataclass(frozen=True, slots=True)
class Plan:
    """best: of all tried, by rate per device. left: the best layout of each family that was not simulated,
    with what its estimate says."""

    best: Tried
    tried: tuple[Tried, ...]
    left: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """layouts: all that the devices allow and that could keep the targets, by estimate per device. unfit:
    why kinds of node cannot."""

    layouts: tuple[Layout, ...]
    unfit: tuple[str, ...]

    def families(self) -> list[Layout]:
        """Of each the likeliest; by turns one of dedicated pools, of nodes that do both, and of the mixture,
        as an estimate that is off for one of the three is off for all of it."""
        best: dict[tuple[str, ...], Layout] = {}
        for layout in self.layouts:
            best.setdefault(layout.family, layout)
        places: Counter[tuple[str, ...]] = Counter()
        turns = []
        for layout in best.values():
            roles = tuple(role for _, role, _ in layout.pools)
            turns.append((places[roles], layout))
            places[roles] += 1
        return [layout for _, layout in sorted(turns, key=lambda turn: turn[0])]

    def neighbours(self, of: Layout) -> list[Layout]:
        """Those with a prefill node more or less."""
        return [
            each
            for each in self.layouts
            if each.family == of.family and abs(each.split.prefill - of.split.prefill) == 1
        ]


def layouts(
    trace: Sequence[Arrival], slo: Slo, profiles: Sequence[Profile], devices: int, share: float = 0.9
) -> Field:
    """share: of the requests that must meet both targets. InvalidArgument: nothing could."""
    models = sorted({kind.name.partition("@")[0] for kind in profiles})
    if len(models) > 1:
        raise InvalidArgument(
            f"{' and '.join(models)} are different models: one deployment serves one", field="profile"
        )
    able = [Ability.of(kind, trace, slo, share) for kind in profiles]
    found = [layout for each in able for layout in _alike(each, devices)]
    found += [layout for first in able for second in able for layout in _pools(first, second, devices)]
    unfit = [
        f"{each.kind.name}: {why}, more than the target"
        for each in able
        for why in (each.late, each.slow)
        if why
    ]
    if not found:
        raise InvalidArgument(_nothing(able, unfit, devices), field="ttft" if unfit else "devices")
    found.sort(key=lambda layout: (-layout.estimate.rate / layout.devices, layout.devices, str(layout)))
    return Field(tuple(found), tuple(unfit))


def _nothing(able: Sequence[Ability], unfit: Sequence[str], devices: int) -> str:
    if unfit:
        return "no profile meets the targets for single requests, even when idle: " + "; ".join(unfit)
    least = min(able, key=lambda each: each.kind.gpus).kind
    return f"{devices} are too few: a node of {least.name} takes {least.gpus:g}"


def _pools(first: Ability, second: Ability, devices: int) -> Iterator[Layout]:
    if first.late or second.slow:
        return
    for prefills in range(1, int(devices / first.kind.gpus) + 1):
        decodes = int((devices - prefills * first.kind.gpus) / second.kind.gpus)
        if decodes < 1:
            return
        other = None if second.kind == first.kind else second.kind
        yield Layout(Split(prefills, decodes), first.kind, other, pools(first, prefills, second, decodes))


def _alike(kind: Ability, devices: int) -> Iterator[Layout]:
    """Nodes that do both, with or without some that only compute prompts."""
    nodes = int(devices / kind.kind.gpus)
    if kind.late or kind.slow:
        return
    for prefills in range(nodes):
        both = nodes - prefills
        yield Layout(Split(prefills, 0, both), kind.kind, None, alike(kind, both, prefills))


class _Search:
    """What was tried and is being tried, in processes of their own."""

    def __init__(self, pool: ProcessPoolExecutor, setting: Setting, precision: float, total: int) -> None:
        self._pool = pool
        self._setting = setting
        self._precision = precision
        self.total = total
        self.tried: list[Tried] = []
        self.passed: list[Layout] = []  # over, since none of them could win

    @property
    def best(self) -> Tried:
        return max(self.tried, key=lambda each: each.rank)

    def run(self, wanted: Sequence[tuple[Layout, str]], at_once: int, progress: Progress) -> None:
        """In their order, so many at once."""
        waiting, running = list(wanted), set[Future[Tried]]()
        while waiting or running:
            while waiting and len(running) < at_once:
                layout, admission = waiting.pop(0)
                if self._hopeless(layout):
                    self.passed.append(layout)
                    self.total -= 1
                    continue
                running.add(self._pool.submit(highest, self._setting, layout, admission, self._precision))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for job in done:
                self.tried.append(job.result())
                last = self.tried[-1]
                told = f"{last.layout}, {last.admission}: {last.rate:.3g}/s"
                progress(len(self.tried), self.total, told)

    def _hopeless(self, layout: Layout) -> bool:
        return bool(self.tried) and layout.estimate.most / layout.devices < self.best.per_device


def make_plan(
    setting: Setting, field: Field, candidates: int, precision: float, workers: int, progress: Progress
) -> Plan:
    """setting: load and targets; its profile and nodes are those of the candidates. candidates: families to
    simulate."""
    families = field.families()
    first = families[:candidates]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        search = _Search(pool, setting, precision, len(first) + 1)
        try:
            search.run([(each, "defer") for each in first], workers, progress)
            nearby = field.neighbours(search.best.layout)
            search.total += len(nearby)
            search.run([(each, "defer") for each in nearby], workers, progress)
            search.run([(search.best.layout, "reject")], workers, progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    left = families[candidates:] + [each for each in search.passed if each in first]
    ranked = sorted(search.tried, key=lambda each: each.rank, reverse=True)
    return Plan(ranked[0], tuple(ranked), tuple(left))


def highest(setting: Setting, layout: Layout, admission: str, precision: float) -> Tried:
    """Of one layout; runs in a process of its own."""
    nodes = layout.split.prefill + layout.split.decode + layout.split.both
    there = replace(setting, profile=layout.prefill, decode_profile=layout.decode, nodes=nodes)
    search = Search(Contender("Baton", "baton", admission), there, precision)
    rate = search.best(max(layout.estimate.rate, 1e-3), [layout.split]).rate
    kept = [point for point in search.runs if point.rate == rate and point.whole]
    if not kept:
        return Tried(layout, admission, rate)
    return Tried(layout, admission, rate, kept[-1].ttft_p90_s, kept[-1].tpot_p90_s)
