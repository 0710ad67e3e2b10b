"""From data to places on a chart: linear and logarithmic scales with round tick marks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LEAST = 1e-9  # nothing shown is so small: what is, counts as nothing
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """low, high: ends of the range, from the data where None. factor: values are shown times this (1e3 for
    seconds shown as ms)."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Values in [low, high] land in [start, end]; what lies beyond is put at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def fit(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """A scale, in shown units, that holds all finite values (on a log axis: all positive ones)."""
    shown = [value * axis.factor for value in values if math.isfinite(value)]
    if axis.log:
        shown = [value for value in shown if value >= LEAST]
    low = axis.low * axis.factor if axis.low is not None else min(shown, default=0.0)
    high = axis.high * axis.factor if axis.high is not None else max(shown, default=1.0)
    if axis.log:
        low = low if low >= LEAST else max(high, 1.0) / 1e3
        ticks = _log_ticks(low, max(high, low * 1.01))
    else:
        low = min(low, 0.0) if axis.low is None and low < 0.4 * high else low  # bars and rates stand on zero
        high = high if high > low else low + 1.0
        ticks = _ticks(low, max(high, low + max(LEAST, abs(low) * 1e-6)))
    first = low if axis.low is not None else ticks[0]
    last = high if axis.high is not None and high > first else ticks[-1]
    kept = tuple(tick for tick in ticks if first <= tick <= last * (1 + 1e-12))
    return Scale(first, last, start, end, axis.log, kept)


def _ticks(low: float, high: float, wanted: int = 5) -> tuple[float, ...]:
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * s for s in STEPS if power * s >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(step * i, 12) for i in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    decades = last - first
    digits = (1,) if decades > 3 else (1, 2, 5)
    stride = -(-decades // 8)
    last += -decades % stride if stride else 0
    powers = range(first, last, stride or 1)
    every = [10.0**power * digit for power in powers for digit in digits] + [10.0**last]
    while len(every) > 2 and every[1] <= low:
        del every[0]
    while len(every) > 2 and every[-2] >= high:
        del every[-1]
    return tuple(every)


def number(value: float) -> str:
    """As a person writes it: 0.25, 12, 1,500, 2.5M."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{value / limit:.3g}{letter}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """12.3 ms, 1.24 s, 3.5 min; a dash for what is not a number."""
    if not math.isfinite(value):
        return "–"
    if value >= 300:
        return f"{value / 60:.1f} min"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "–"
