"""An experiment from its options to its results."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from baton import __version__
from baton.bench.load.experiment import Experimenter
from baton.bench.load.one_run import Settings, Show
from baton.bench.load.plan import Writer, token_writer
from baton.bench.load.results import Experiment, Results, Run, TargetFacts, pooled
from baton.bench.load.target import Facts, Target
from baton.bench.load.words import Tokenizer, word_writer
from baton.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Question:
    """rates: to be run; None among them: a trace as it is. find_from: search from this rate instead.
    tokenizer: prompts of its words; None: of any token ids below vocab_size (0: as the targets say)."""

    rates: tuple[float | None, ...]
    find_from: float | None = None
    precision: float = 0.05
    tokenizer: Tokenizer | None = None
    vocab_size: int = 0


async def measure(
    targets: Sequence[Target],
    settings: Settings,
    question: Question,
    show: Show,
    keep: Callable[[Results], None],
) -> Results:
    """keep: is given the results so far after each run, so that what took long is not lost by what follows.
    BatonError: a target is not there, or what is asked for cannot be."""
    checked(settings)
    async with AsyncExitStack() as stack:
        facts: list[Facts] = []
        for target in targets:
            facts.append(await target.open())
            stack.push_async_callback(target.close)
        writers = _writers(targets, facts, question)
        results = empty_results(targets, facts, settings)

        def kept(run: Run) -> None:
            results.runs.append(run)
            results.pools = pooled(results.runs)
            keep(results)

        experimenter = Experimenter(targets, writers, settings, kept, show)
        if question.find_from is None:
            await experimenter.rates(question.rates)
        else:
            results.found = await experimenter.find(question.find_from, question.precision)
            keep(results)
    return results


def checked(settings: Settings) -> None:
    """InvalidArgument: no window is left to measure in."""
    settings.slo.validate()
    if settings.duration_s - settings.warmup_s - settings.tail_s <= 0:
        raise InvalidArgument("must be longer than --warmup and --tail together", field="duration")
    if not 0 < settings.attainment <= 1:
        raise InvalidArgument(
            f"must be above 0 and at most 1, got {settings.attainment:g}", field="attainment"
        )


def _writers(targets: Sequence[Target], facts: Sequence[Facts], question: Question) -> dict[str, Writer]:
    """By target. The same vocabulary for all, so that all get the same prompts."""
    if (tokenizer := question.tokenizer) is not None:
        by_kind = {chat: word_writer(tokenizer, chat=chat) for chat in {target.chat for target in targets}}
        return {target.name: by_kind[target.chat] for target in targets}
    known = [question.vocab_size] if question.vocab_size else [f.vocab_size for f in facts if f.vocab_size]
    if not known:
        raise InvalidArgument(
            "no target tells its vocabulary: give --tokenizer or --vocab-size", field="target"
        )
    write = token_writer(min(known))
    return {target.name: write for target in targets}


def empty_results(targets: Sequence[Target], facts: Sequence[Facts], settings: Settings) -> Results:
    workload, slo = settings.workload, settings.slo
    return Results(
        Experiment(
            arrivals=workload.name,
            cv=workload.cv,
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            duration_s=settings.duration_s,
            warmup_s=settings.warmup_s,
            tail_s=settings.tail_s,
            rounds=settings.rounds,
            seed=settings.seed,
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            attainment=settings.attainment,
            salt=settings.salt,
            max_lateness_s=settings.max_lateness_s,
            trace="" if workload.trace is None else str(workload.trace.resolve()),
            prefixes=workload.prefixes,
            prefix_tokens=workload.prefix_tokens,
        ),
        [
            TargetFacts(t.name, t.url, f.model, f.nodes, f.hosts, f.router)
            for t, f in zip(targets, facts, strict=True)
        ],
        runs=[],
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        machine=machine(),
    )


def machine() -> dict[str, str]:
    """Where the generator ran."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
