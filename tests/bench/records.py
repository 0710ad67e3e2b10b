"""Records and results to try things on."""

from __future__ import annotations

import random

from baton.bench.load.record import Outcome, Record
from baton.bench.load.results import Experiment, Results, Run, TargetFacts, pooled
from baton.bench.load.spread import spread
from baton.bench.load.summary import summarise
from baton.core.request import Slo


def record(
    number: int = 0,
    intended_s: float = 0.0,
    first_s: float | None = 0.5,
    step_s: float = 0.05,
    tokens: int = 5,
    outcome: Outcome = Outcome.OK,
    slo: Slo = Slo(1.0, 0.1),  # noqa: B008 - frozen
    error: str = "",
) -> Record:
    """first_s, after the request was due: None for no token."""
    chunks = []
    if first_s is not None:
        chunks = [(intended_s + first_s + i * step_s, 1) for i in range(tokens)]
    end_s = chunks[-1][0] if chunks else intended_s
    return Record(
        number,
        intended_s,
        10,
        tokens,
        slo,
        intended_s,
        end_s,
        outcome,
        chunks,
        len(chunks),
        None,
        None,
        error,
    )


def run(
    target: str = "a",
    rate: float = 2.0,
    seed: int = 0,
    *,
    slow: float = 1.0,
    count: int = 60,
    invalid: str = "",
) -> Run:
    """Requests every 1/rate seconds; latencies are random, and `slow` times as long."""
    dice = random.Random(seed)
    records = [
        record(i, i / rate, slow * dice.uniform(0.2, 1.2), slow * dice.uniform(0.02, 0.11))
        for i in range(count)
    ]
    return Run(
        target=target,
        rate=rate,
        round=0,
        seed=seed,
        from_s=0.0,
        until_s=count / rate,
        started_at="2026-01-01T00:00:00+00:00",
        lateness_s=spread([0.001]),
        lag_s=spread([0.001]),
        invalid=invalid,
        stopped_s=None,
        records=records,
        summary=summarise(records, count / rate),
    )


def results(*runs: Run) -> Results:
    experiment = Experiment("poisson", 1.0, "10", "5", 30.0, 0.0, 0.0, 1, 0, 1.0, 0.1, 0.9, 1, 0.025)
    names = dict.fromkeys(each.target for each in runs)
    targets = [TargetFacts(name, f"grpc://{name}") for name in names]
    return Results(experiment, targets, list(runs), pools=pooled(list(runs)))
