"""The highest rate at which a contender keeps the attainment, and the split of nodes that allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.sim.experiments.bound import needs, served
from baton.sim.experiments.contenders import Contender
from baton.sim.experiments.point import Point, run_point
from baton.sim.experiments.setting import Setting, Split

GROW = 1.5
MOST_GROWTH = 13  # looks, so a factor of 130 either way


@dataclass(frozen=True, slots=True)
class Highest:
    """rate: requests per second at which the attainment is still kept. runs: how many it took to find."""

    contender: str
    split: Split
    rate: float
    runs: int


def highest_rate(passes: Callable[[float], bool], start: float, precision: float) -> float:
    """The largest rate with `passes`, within a relative `precision`; 0 where none is found down to some
    hundredth of `start`. It is taken to pass below and to fail above."""
    low, high = 0.0, 0.0
    rate = start
    for _ in range(MOST_GROWTH):
        if passes(rate):
            low = rate
            if high:
                break
            rate *= GROW
        else:
            high = rate
            if low:
                break
            rate /= GROW
    if not low or not high:
        return low
    while high / low > 1.0 + precision:
        middle = (low * high) ** 0.5
        if passes(middle):
            low = middle
        else:
            high = middle
    return low


class Search:
    """Looks for the best split of one contender, remembering what it ran."""

    def __init__(self, contender: Contender, setting: Setting, precision: float) -> None:
        self._contender = contender
        self._setting = setting
        self._precision = precision
        self.runs: list[Point] = []

    def best(self, start: float, splits: Sequence[Split] | None = None) -> Highest:
        """start: a rate to begin with. splits: families of neighbours are climbed one after the other, each
        from its likeliest; where all nodes may do both, from there first."""
        splits = list(splits or self._contender.splits(self._setting))
        pools = [split for split in splits if not split.both]
        mixed = [split for split in splits if split.both]
        begins = [
            (family, family.index(likely(family, self._setting))) for family in (pools, mixed) if family
        ]
        begins[:0] = [(mixed, place) for place, s in enumerate(mixed) if not s.prefill and not s.decode]
        split, rate = splits[0], 0.0
        for family, place in begins:
            split, rate = self._climb(family, place, split, rate, start)
        return Highest(self._contender.name, split, rate, len(self.runs))

    def _climb(
        self, family: list[Split], place: int, best: Split, rate: float, start: float
    ) -> tuple[Split, float]:
        """From one of the family towards whichever neighbour does better than the best so far."""
        if not rate:
            best, rate = family[place], highest_rate(self._passes(family[place]), start, self._precision)
        elif (better := self._better(family[place], rate)) > rate:
            best, rate = family[place], better
        for step in (1, -1):
            at = place + step
            while 0 <= at < len(family) and (better := self._better(family[at], rate)) > rate:
                best, rate = family[at], better
                at += step
            if at != place + step:
                break  # it rose on this side, so it falls on the other
        return best, rate

    def _better(self, split: Split, rate: float) -> float:
        """Its highest rate, if that is above the given one; else no more than that."""
        passes = self._passes(split)
        above = rate * (1.0 + self._precision)
        if not rate or not passes(above):
            return rate if rate else highest_rate(passes, self._setting.rate, self._precision)
        return max(above, highest_rate(passes, above * GROW**0.5, self._precision))

    def _passes(self, split: Split) -> Callable[[float], bool]:
        least = self._setting.attainment

        def passes(rate: float) -> bool:
            if rate > self._setting.most_rate:
                return False
            point = run_point(self._contender, self._setting, split, rate, least=least)
            self.runs.append(point)
            return point.whole and point.attained >= least

        return passes


def likely(family: Sequence[Split], setting: Setting) -> Split:
    """The split that divides nodes as the work divides."""
    found = needs(setting.arrivals, setting.profile, setting.slo)
    prefill_s = sum(need.prefill_s for need in found)
    share = prefill_s / max(1e-12, prefill_s + sum(need.decode_s for need in found))
    return min(family, key=lambda split: abs(split.prefill - share * setting.nodes))


def bound_rate(setting: Setting, precision: float = 0.01) -> float:
    """The highest rate at which even the fused machine of `bound` serves enough in time."""

    def passes(rate: float) -> bool:
        if rate > setting.most_rate:
            return False
        long = setting.lasting(rate)
        found = needs(long.arrivals, long.profile, long.slo)
        kept = served(found, long.rate / rate, long.nodes, long.slo.ttft_s)
        return sum(kept) >= long.attainment * len(found)

    return highest_rate(passes, setting.rate, precision)
