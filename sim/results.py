"""What became of each request, and the figures made of many: percentiles, attainment, goodput. Pure.

The simulator and the load generator fill in the same records, so that a predicted and a measured run are
compared figure by figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.core.request import Slo
from baton.core.value import value

NO_SLO = Slo()


@value
class RequestResult:
    """Times in seconds since the run began, as the client saw them; None: never happened.

    arrived_s: when it was due (not when it could be sent). outcome: "stop", "length", "cancelled", or the
    code of the error it ended with, as "RESOURCE_EXHAUSTED". resent: how often the client asked again.
    """

    number: int
    arrived_s: float
    prompt_tokens: int
    outcome: str
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float = 0.0
    slo: Slo = NO_SLO
    priority: int = 0
    cached_tokens: int = 0
    prefill_node: str = ""
    decode_node: str = ""
    retries: int = 0
    preemptions: int = 0
    resent: int = 0

    @property
    def ok(self) -> bool:
        """A whole answer came."""
        return self.outcome in ("stop", "length")

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None with fewer than two."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    def meets(self, slo: Slo | None = None) -> bool:
        """A whole answer within both targets (its own, unless given others). No target: none to miss."""
        slo = slo or self.slo
        ttft_s, tpot_s = self.ttft_s, self.tpot_s
        if not self.ok or ttft_s is None:
            return False
        if slo.ttft_s is not None and ttft_s > slo.ttft_s:
            return False
        return slo.tpot_s is None or tpot_s is None or tpot_s <= slo.tpot_s


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is distributed; all NaN where nothing was measured."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """requests: all that arrived. attained: share of them that met their targets; span_s: over which they
    arrived. goodput_rps: good ones per second until all had come and the last good one had ended. output_tps:
    tokens per second of the time until the last answer ended."""

    requests: int
    completed: int
    rejected: int
    span_s: float
    attained: float
    goodput_rps: float
    output_tps: float
    ttft_s: Spread
    tpot_s: Spread


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, linear between neighbours; NaN of none. share: in [0, 1]."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, *[math.nan] * 5)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def attainment(results: Sequence[RequestResult], slo: Slo | None = None) -> float:
    """Share of all requests that met both targets; whatever was rejected or failed did not. 1 of none."""
    return sum(result.meets(slo) for result in results) / len(results) if results else 1.0


def summarise(
    results: Sequence[RequestResult], slo: Slo | None = None, span_s: float | None = None
) -> Summary:
    """slo: in place of each request's own. span_s: of the arrivals; from first to last, and the mean gap that
    belongs to the last, unless given: so goodput never exceeds what was offered, nor, in a burst, what was
    served in the time it took."""
    arrivals = [result.arrived_s for result in results]
    if span_s is None:
        span_s = max(arrivals) - min(arrivals) if arrivals else 0.0
        span_s += span_s / max(1, len(results) - 1)
    since_s = min(arrivals, default=0.0)
    good = [result.ended_s for result in results if result.meets(slo)]
    good_s = max(span_s, max(good, default=0.0) - since_s)
    all_s = max(span_s, max((result.ended_s for result in results if result.ok), default=0.0) - since_s)
    completed = sum(result.ok for result in results)
    return Summary(
        requests=len(results),
        completed=completed,
        rejected=len(results) - completed,
        span_s=span_s,
        attained=len(good) / len(results) if results else 1.0,
        goodput_rps=len(good) / good_s if good_s > 0 else 0.0,
        output_tps=sum(result.output_tokens for result in results) / all_s if all_s > 0 else 0.0,
        ttft_s=spread(ttft for result in results if (ttft := result.ttft_s) is not None),
        tpot_s=spread(tpot for result in results if (tpot := result.tpot_s) is not None),
    )


def warm(results: Sequence[RequestResult], cut_s: float, until_s: float = math.inf) -> list[RequestResult]:
    """Those that arrived in [cut_s, until_s): what came before found a cluster that was not yet busy."""
    return [result for result in results if cut_s <= result.arrived_s < until_s]
