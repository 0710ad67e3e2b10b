"""Which nodes, in which roles, serve the most requests per device within the targets?

All ways to spend the devices on prefill and decode nodes of the profiles at hand are ranked by an estimate:
the rate at which neither pool is overloaded (the form of DistServe's and AIConfigurator's searches). The best
few are simulated, each up to the highest rate that it keeps; then the best one with the other admission
policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.bound import Need, needs, prompt_s
from baton.sim.experiments.contenders import Contender
from baton.sim.experiments.search import Highest, Search
from baton.sim.experiments.setting import Setting, Split
from baton.sim.results import percentile
from baton.sim.spec import Profile
from baton.sim.workload.arrival import Arrival

USEFUL = 0.9  # of a pool's time: above that queues grow long
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """decode: None: the same profile as prefill (or all nodes do both). estimate: requests per second."""

    split: Split
    prefill: Profile
    decode: Profile | None
    estimate: float

    @property
    def devices(self) -> float:
        second = self.decode or self.prefill
        return (self.split.prefill + self.split.both) * self.prefill.gpus + self.split.decode * second.gpus

    def __str__(self) -> str:
        second = self.decode or self.prefill
        pools = ((self.split.prefill, "prefill", self.prefill), (self.split.decode, "decode", second))
        named = [f"{count} {role} on {kind.name}" for count, role, kind in pools if count]
        named += [f"{self.split.both} both on {self.prefill.name}"] if self.split.both else []
        return ", ".join(named)


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: requests per second of which the wanted share meets the targets. tried: (layout, admission,
    rate)."""

    layout: Layout
    admission: str
    rate: float
    tried: tuple[tuple[str, str, float], ...]

    @property
    def per_device(self) -> float:
        return self.rate / self.layout.devices


def layouts(trace: Sequence[Arrival], slo: Slo, profiles: Sequence[Profile], devices: int) -> list[Layout]:
    """All that the devices allow and that could meet the targets at some rate, the best estimate first."""
    works = {kind.name: needs(trace, kind, slo) for kind in profiles}
    found = []
    for first in profiles:
        if not _fast_enough(trace, first, slo):
            continue
        found += list(_alike(first, devices, works))
        found += [each for second in profiles for each in _pools(first, second, devices, works)]
    if not found:
        raise InvalidArgument(
            "no profile meets the targets for single requests, even when idle", field="ttft"
        )
    return sorted(found, key=lambda layout: (-layout.estimate, str(layout)))


def _fast_enough(trace: Sequence[Arrival], kind: Profile, slo: Slo) -> bool:
    """Nine prompts of ten could be in time on an idle node."""
    if slo.ttft_s is None:
        return True
    alone = sorted(prompt_s(kind, arrival.prompt_tokens, 0) for arrival in trace)
    return percentile(alone, 0.9) <= slo.ttft_s


def _pools(first: Profile, second: Profile, devices: int, works: dict[str, list[Need]]) -> Iterator[Layout]:
    prefill_s, decode_s = _mean(works[first.name])[0], _mean(works[second.name])[1]
    for prefills in range(1, int(devices / first.gpus)):
        decodes = int((devices - prefills * first.gpus) / second.gpus)
        if decodes < 1:
            return
        rate = USEFUL * min(prefills / max(prefill_s, 1e-12), decodes / max(decode_s, 1e-12))
        other = None if second == first else second
        yield Layout(Split(prefills, decodes), first, other, rate)


def _alike(kind: Profile, devices: int, works: dict[str, list[Need]]) -> Iterator[Layout]:
    """Nodes that do both, with or without some that only compute prompts."""
    nodes = int(devices / kind.gpus)
    rate = USEFUL * nodes / max(sum(_mean(works[kind.name])), 1e-12)
    for prefills in {0, nodes // 2}:
        if nodes > prefills:
            yield Layout(Split(prefills, 0, nodes - prefills), kind, None, 0.9 * rate)


def _mean(found: Sequence[Need]) -> tuple[float, float]:
    count = max(1, len(found))
    return sum(need.prefill_s for need in found) / count, sum(need.decode_s for need in found) / count


def make_plan(
    setting: Setting, candidates: Sequence[Layout], precision: float, workers: int, progress: Progress
) -> Plan:
    """setting: load and targets; its profile and nodes are those of the candidates."""
    tried: list[tuple[Layout, str, float]] = []
    total = len(candidates) + 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            jobs = {pool.submit(highest, setting, each, "defer", precision): each for each in candidates}
            for job in as_completed(jobs):
                tried.append((jobs[job], "defer", job.result().rate))
                progress(len(tried), total, f"{jobs[job]}: {tried[-1][2]:.3g}/s")
            best = max(tried, key=lambda each: each[2] / each[0].devices)
            rate = pool.submit(highest, setting, best[0], "reject", precision).result().rate
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    tried.append((best[0], "reject", rate))
    progress(total, total, f"{best[0]}, reject: {rate:.3g}/s")
    layout, admission, rate = max(tried, key=lambda each: (each[2] / each[0].devices, each[1] == "defer"))
    return Plan(layout, admission, rate, tuple((str(each), how, found) for each, how, found in tried))


def highest(setting: Setting, layout: Layout, admission: str, precision: float) -> Highest:
    """Of one layout; runs in a process of its own."""
    nodes = layout.split.prefill + layout.split.decode + layout.split.both
    there = replace(setting, profile=layout.prefill, decode_profile=layout.decode, nodes=nodes)
    contender = Contender("Baton", "baton", admission)
    return Search(contender, there, precision).best(max(layout.estimate, 1e-3), [layout.split])
