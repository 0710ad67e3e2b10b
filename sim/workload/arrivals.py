"""Synthetic workloads and what can be done to any: lazy streams of arrivals, the same for the same seed.

Gaps between arrivals are gamma distributed with a coefficient of variation: 0 is a metronome, 1 a Poisson
process, above 1 comes in bursts (BurstGPT, arXiv:2401.17644, finds such in production).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.workload.arrival import NO_SLO, Arrival
from baton.sim.workload.lengths import Lengths


def gaps(rate: float, cv: float, dice: Random) -> Iterator[float]:
    """Endless seconds between arrivals, `rate` per second in the mean."""
    if not (rate > 0 and math.isfinite(rate)):
        raise InvalidArgument(f"must be a positive number, got {rate}", field="rate")
    if not (cv >= 0 and math.isfinite(cv)):
        raise InvalidArgument(f"must be at least 0, got {cv}", field="cv")
    if cv == 0:
        while True:
            yield 1.0 / rate
    shape = 1.0 / (cv * cv)
    scale = 1.0 / (rate * shape)
    while True:
        yield dice.gammavariate(shape, scale)


def gamma(rate: float, cv: float, lengths: Lengths, seed: int, slo: Slo = NO_SLO) -> Iterator[Arrival]:
    """Endless arrivals. Their times and their lengths come from dice of their own, so that a change of the
    rate keeps the requests."""
    times, sizes = Random(f"{seed}/times"), Random(f"{seed}/lengths")
    at_s = 0.0
    for gap_s in gaps(rate, cv, times):
        at_s += gap_s
        prompt_tokens, output_tokens = lengths(sizes)
        yield Arrival(at_s, prompt_tokens, output_tokens, slo=slo)


def poisson(rate: float, lengths: Lengths, seed: int, slo: Slo = NO_SLO) -> Iterator[Arrival]:
    """Independent arrivals, endless."""
    return gamma(rate, 1.0, lengths, seed, slo)


def constant(rate: float, lengths: Lengths, seed: int, slo: Slo = NO_SLO) -> Iterator[Arrival]:
    """One every 1/rate seconds, endless."""
    return gamma(rate, 0.0, lengths, seed, slo)


def timed(trace: Iterable[Arrival], rate: float, cv: float, seed: int) -> Iterator[Arrival]:
    """The trace's requests in its order, at times drawn anew."""
    at_s = 0.0
    for arrival, gap_s in zip(trace, gaps(rate, cv, Random(f"{seed}/times")), strict=False):
        at_s += gap_s
        yield replace(arrival, at_s=at_s)


def scaled(trace: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """All times multiplied: a factor of 0.5 doubles the rate and keeps the shape."""
    if not (factor > 0 and math.isfinite(factor)):
        raise InvalidArgument(f"must be a positive number, got {factor}", field="factor")
    return (replace(arrival, at_s=arrival.at_s * factor) for arrival in trace)


def cut(trace: Iterable[Arrival], from_s: float = 0.0, until_s: float = math.inf) -> Iterator[Arrival]:
    """Arrivals in [from_s, until_s), with from_s as the new 0."""
    for arrival in trace:
        if arrival.at_s >= until_s:
            return
        if arrival.at_s >= from_s:
            yield replace(arrival, at_s=arrival.at_s - from_s)


def first(trace: Iterable[Arrival], count: int) -> Iterator[Arrival]:
    return islice(trace, count)


def stretch(trace: Sequence[Arrival], skip: int, count: int | None) -> Iterator[Arrival]:
    """So many requests (None: all) after the first `skip`, the first of them at 0."""
    some = trace[skip:] if count is None else trace[skip : skip + count]
    return cut(some, some[0].at_s if some and skip else 0.0)


def thinned(trace: Iterable[Arrival], share: float, seed: int) -> Iterator[Arrival]:
    """Each kept with the same chance: the rate falls, the times of what stays do not move."""
    dice = Random(f"{seed}/thinned")
    return (arrival for arrival in trace if dice.random() < share)


def repeated(trace: Sequence[Arrival], times: int, *, fresh_prefixes: bool = True) -> Iterator[Arrival]:
    """The trace over and over, a mean gap between two rounds. fresh_prefixes: each round has prefixes of its
    own, so that the first does not fill the caches for the next."""
    if not trace:
        return
    span_s = trace[-1].at_s + trace[-1].at_s / max(1, len(trace) - 1)
    ids = 1 + max((max(arrival.prefix, default=-1) for arrival in trace), default=-1)
    for turn in range(times):
        move = ids * turn if fresh_prefixes else 0
        for arrival in trace:
            prefix = tuple(block + move for block in arrival.prefix) if move else arrival.prefix
            yield replace(arrival, at_s=arrival.at_s + turn * span_s, prefix=prefix)


def with_slo(trace: Iterable[Arrival], slo: Slo) -> Iterator[Arrival]:
    slo.validate()
    return (replace(arrival, slo=slo) for arrival in trace)


def shared_prefixes(
    trace: Iterable[Arrival], groups: int, tokens: int, seed: int, skew: float = 1.0
) -> Iterator[Arrival]:
    """Let each request begin with one of `groups` texts of `tokens` tokens (system prompts), as long as its
    prompt allows; the k-th is chosen in proportion to 1/k**skew (a Zipf law)."""
    dice = Random(f"{seed}/prefixes")
    weights = [1.0 / (k + 1) ** skew for k in range(groups)]
    block = 16
    blocks = max(1, tokens // block)
    for arrival in trace:
        group = dice.choices(range(groups), weights)[0]
        count = min(blocks, (arrival.prompt_tokens - 1) // block)
        prefix = tuple(range(group * blocks, group * blocks + count))
        yield replace(arrival, prefix=prefix, prefix_block=block)


def offered_rate(trace: Sequence[Arrival]) -> float:
    """Requests per second over the trace's span."""
    span_s = trace[-1].at_s - trace[0].at_s if trace else 0.0
    return (len(trace) - 1) / span_s if span_s > 0 else math.inf
