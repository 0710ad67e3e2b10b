"""One run: a target, a rate, a round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from baton.bench.load.generator import Limits, Log, fire
from baton.bench.load.goodput import beyond_hope
from baton.bench.load.plan import RUN_STRIDE, Plan, Writer, shots
from baton.bench.load.record import Record
from baton.bench.load.results import Run
from baton.bench.load.spread import spread
from baton.bench.load.summary import summarise
from baton.bench.load.target import Target
from baton.bench.load.workload import Workload
from baton.core.request import Slo
from baton.sim.results import NO_SLO, percentile
from baton.sim.workload.arrival import Arrival

LATE_SHARE = 0.99  # so much of a run has to be in time
PING = Arrival(0.0, 8, 1)
PING_LIMITS = Limits(timeout_s=60.0, drain_s=60.0)


@dataclass(frozen=True, slots=True)
class Settings:
    """settle_s: before each run a pause for what an earlier one left, then one small request that has to come
    through; 0: neither. salt: two experiments with different ones share no prompt."""

    workload: Workload
    slo: Slo = NO_SLO
    attainment: float = 0.9
    duration_s: float = 60.0
    warmup_s: float = 0.0
    tail_s: float = 0.0
    rounds: int = 1
    seed: int = 0
    salt: int = 0
    max_lateness_s: float = 0.025
    settle_s: float = 1.0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to run. number: no other run of the experiment has it. rate: None for a trace as it is.
    hopeless: end it once the attainment is out of reach."""

    rate: float | None
    round: int
    number: int
    hopeless: bool = False


Show = Callable[[str, float, int, Log, float], None]
"""Told, several times a second, of target, rate, how many requests there are in all, the run so far, the
time."""


async def run(target: Target, write: Writer, settings: Settings, turn: Turn, show: Show) -> Run:
    seed = settings.seed + turn.round
    arrivals = settings.workload.make(turn.rate, settings.duration_s, seed)
    number = (settings.salt << 16) + turn.number
    plan = Plan(
        shots(arrivals, write, number, settings.slo),
        settings.warmup_s,
        settings.duration_s - settings.tail_s,
    )
    rate = turn.rate or len(arrivals) / settings.duration_s
    if settings.settle_s > 0:
        await _settle(target, write, settings.settle_s, number)
    expected = sum(plan.counts(shot.at_s) for shot in plan.shots)

    def watch(log: Log, now_s: float) -> bool:
        show(target.name, rate, len(plan.shots), log, now_s)
        counted = [record for record in log.records if plan.counts(record.intended_s)]
        return turn.hopeless and beyond_hope(counted, expected, settings.attainment, now_s)

    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    log = await fire(target, plan, settings.limits, watch)
    counted = [record for record in log.records if plan.counts(record.intended_s)]
    return Run(
        target=target.name,
        rate=rate,
        round=turn.round,
        seed=seed,
        from_s=plan.from_s,
        until_s=plan.until_s,
        started_at=started_at,
        lateness_s=spread(record.lateness_s for record in log.records),
        lag_s=spread(log.lags_s),
        invalid=_invalid(log.records, log.lags_s, settings.max_lateness_s),
        stopped_s=log.stopped_s,
        records=log.records,
        summary=summarise(counted, plan.window_s),
        own_times=turn.rate is None,
    )


def _invalid(records: list[Record], lags_s: list[float], most_s: float) -> str:
    """Why the generator is to blame; "": it is not."""
    for name, values in (
        ("sent its requests", [record.lateness_s for record in records]),
        ("read answers", lags_s),
    ):
        if (late_s := percentile(sorted(values), LATE_SHARE)) > most_s:
            return f"the generator {name} {late_s * 1e3:.0f} ms late (P99), {most_s * 1e3:.0f} ms are allowed"
    return ""


async def _settle(target: Target, write: Writer, pause_s: float, number: int) -> None:
    await asyncio.sleep(pause_s)
    last = (number + 1) * RUN_STRIDE - 1  # no request of the run has it
    ping = shots([PING], lambda arrival, _: write(arrival, last), 0, NO_SLO)
    await fire(target, Plan(ping, 0.0, 1.0), PING_LIMITS)
