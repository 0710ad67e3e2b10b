"""Did a request meet its targets? And what that makes of many: attainment, goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.bench.load.record import Outcome, Record

Z_95 = 1.959964  # of the normal distribution, two-sided


def met(record: Record) -> bool:
    """Whether it ended well and within every target that is set. An answer without a token has its end for
    its first token; one with a single token has no TPOT, and so meets any target for it."""
    if record.outcome is not Outcome.OK:
        return False
    slo = record.slo
    first_s = record.e2e_s if record.ttft_s is None else record.ttft_s
    tpot_s = record.tpot_s
    in_time = slo.ttft_s is None or (first_s is not None and first_s <= slo.ttft_s)
    in_pace = slo.tpot_s is None or tpot_s is None or tpot_s <= slo.tpot_s
    return in_time and in_pace


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of all requests whose time lies in the window, rejected and failed ones included. attainment: the share
    that met both targets, with its 95 % interval (Wilson's). rate: such requests per second."""

    counted: int
    met: int
    attainment: float
    low: float
    high: float
    rate: float


def goodput(records: Sequence[Record], window_s: float) -> Goodput:
    good = sum(met(record) for record in records)
    low, high = wilson(good, len(records))
    share = good / len(records) if records else 0.0
    return Goodput(len(records), good, share, low, high, good / window_s if window_s > 0 else 0.0)


def wilson(hits: int, tries: int, z: float = Z_95) -> tuple[float, float]:
    """Interval for a share, sound near 0 and 1 (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927). (0, 1) of
    none."""
    if tries == 0:
        return 0.0, 1.0
    share, spread = hits / tries, z * z / tries
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / tries + spread / (4 * tries)) / (1 + spread)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def beyond_hope(records: Sequence[Record], expected: int, attainment: float, now_s: float) -> bool:
    """Whether `attainment` cannot be reached any more, however well all that is open or to come ends.

    expected: requests that will be counted. A request without a token by its TTFT target has missed it.
    """
    missed = 0
    for record in records:
        if record.outcome is not Outcome.UNFINISHED:
            missed += not met(record)
        elif record.slo.ttft_s is not None:
            seen_s = record.ttft_s
            missed += (now_s - record.intended_s if seen_s is None else seen_s) > record.slo.ttft_s
    return missed > expected * (1 - attainment) + 1e-9
