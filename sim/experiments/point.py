"""One run: a contender on a setting with a split, at a rate; and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from baton.router.events import Effect, Event
from baton.sim.experiments.contenders import Contender
from baton.sim.experiments.setting import Setting, Split
from baton.sim.results import RequestResult, summarise


class _Enough(BaseException):
    """Too many have missed: the rest cannot mend it. Not an error, so that nobody takes it for one."""


class _Misses:
    """Counts misses among what has ended, and ends the run beyond `most`."""

    def __init__(self, ended: list[RequestResult], most: float) -> None:
        self._ended = ended
        self._most = most
        self._seen = self._missed = 0

    def watch(self, now: float, event: Event, effects: list[Effect]) -> None:
        while self._seen < len(self._ended):
            self._missed += not self._ended[self._seen].meets()
            self._seen += 1
        if self._missed > self._most:
            raise _Enough


@dataclass(frozen=True, slots=True)
class Point:
    """rate, goodput_rps: requests per second that came, and that met their targets. Percentiles in seconds.
    whole: false where the run was ended as hopeless; figures are then of no use."""

    contender: str
    split: str
    rate: float
    attained: float
    goodput_rps: float = 0.0
    rejected: float = 0.0
    ttft_p50_s: float = 0.0
    ttft_p90_s: float = 0.0
    tpot_p50_s: float = 0.0
    tpot_p90_s: float = 0.0
    busy: float = 0.0
    whole: bool = True


def run_point(
    contender: Contender, setting: Setting, split: Split, rate: float, *, least: float | None = None
) -> Point:
    """Requests are repeated where they would be a burst at that rate. least: the attainment below which the
    run is of no interest and may end early."""
    best = Point(contender.name, str(split), rate, -1.0, whole=False)
    for each in contender.tries():
        point = _run(each, setting, split, rate, least)
        if point.attained > best.attained:
            best = point
        if least is not None and best.attained >= least:
            break
    return best


def _run(contender: Contender, setting: Setting, split: Split, rate: float, least: float | None) -> Point:
    ended: list[RequestResult] = []
    setting = setting.lasting(rate)
    count = len(setting.arrivals)
    watch = None if least is None else _Misses(ended, (1.0 - least) * count).watch
    world = contender.world(setting, split, rate, watch)
    world.clients.results = ended
    try:
        results = world.run(setting.at(rate))
    except _Enough:
        return Point(contender.name, str(split), rate, 0.0, whole=False)
    summary = summarise(results.requests)
    return Point(
        contender=contender.name,
        split=str(split),
        rate=rate,
        attained=summary.attained,
        goodput_rps=summary.goodput_rps,
        rejected=summary.rejected / summary.requests,
        ttft_p50_s=summary.ttft_s.p50,
        ttft_p90_s=summary.ttft_s.p90,
        tpot_p50_s=summary.tpot_s.p50,
        tpot_p90_s=summary.tpot_s.p90,
        busy=sum(results.busy.values()) / max(1, len(results.busy)),
    )
