"""Two results side by side: what differs, and whether that could be chance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.table import Table

from baton.bench.load.bootstrap import Difference, Statistic, compared, mean, quantile_of
from baton.bench.load.goodput import met
from baton.bench.load.record import Record
from baton.bench.load.results import Results, Run
from baton.bench.load.tables import plain_table
from baton.core.errors import InvalidArgument

Value = Callable[[Record], float | None]
Group = tuple[list[Record], float]
"""Records in order of their time, and the seconds in which they came."""


@dataclass(frozen=True, slots=True)
class Metric:
    """better: whether more is better. factor: for showing."""

    name: str
    unit: str
    value: Value
    statistic: Statistic
    more_is_better: bool = False
    factor: float = 1.0


METRICS = (
    Metric("TTFT P50", "s", lambda r: r.ttft_s, quantile_of(0.5)),
    Metric("TTFT P90", "s", lambda r: r.ttft_s, quantile_of(0.9)),
    Metric("TTFT P99", "s", lambda r: r.ttft_s, quantile_of(0.99)),
    Metric("TPOT P50", "ms", lambda r: r.tpot_s, quantile_of(0.5), factor=1e3),
    Metric("TPOT P90", "ms", lambda r: r.tpot_s, quantile_of(0.9), factor=1e3),
    Metric("TPOT P99", "ms", lambda r: r.tpot_s, quantile_of(0.99), factor=1e3),
    Metric("silence P50", "ms", lambda r: r.longest_gap_s, quantile_of(0.5), factor=1e3),
    Metric("E2E P50", "s", lambda r: r.e2e_s, quantile_of(0.5)),
    Metric("E2E P90", "s", lambda r: r.e2e_s, quantile_of(0.9)),
    Metric("attained", "%", lambda r: float(met(r)), mean, True, 100.0),
)
GOODPUT = Metric("goodput", "/s", lambda r: float(met(r)), mean, True)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair: a target of a file, at a rate."""

    name: str
    rate: float
    requests: int


@dataclass(frozen=True, slots=True)
class Pair:
    a: Side
    b: Side
    differences: tuple[tuple[Metric, Difference], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """notes: what makes the two hard to compare."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        return [_table(pair) for pair in self.pairs]

    def as_json(self) -> str:
        """One object; values in seconds and shares."""
        return json.dumps(
            {
                "notes": self.notes,
                "pairs": [
                    {
                        "a": asdict(pair.a),
                        "b": asdict(pair.b),
                        "differences": {
                            metric.name: asdict(difference) | {"clear": difference.clear}
                            for metric, difference in pair.differences
                        },
                    }
                    for pair in self.pairs
                ],
            }
        )


def comparison(a: Results, b: Results, names: tuple[str, str]) -> Comparison:
    """Pairs of the same target name and rate; where no two names agree and each has one target, those two.
    InvalidArgument: nothing to be paired."""
    first, second = _groups(a), _groups(b)
    renamed = {target for target, _ in first} != {target for target, _ in second}
    single = len({t for t, _ in first}) == len({t for t, _ in second}) == 1
    if renamed and single:
        name = next(iter(first))[0]
        keys = {(name, rate): (next(iter(second))[0], rate) for _, rate in first}
    else:
        keys = {key: key for key in first}
    pairs = [
        _pair((names[0], *key), first[key], (names[1], *other), second[other])
        for key, other in sorted(keys.items())
        if other in second
    ]
    if not pairs:
        raise InvalidArgument("no target was measured at the same rate in both files", field="compare")
    return Comparison(tuple(pairs), tuple(_notes(a, b)))


def _groups(results: Results) -> dict[tuple[str, float], Group]:
    """What counts, by target and rate."""
    groups: dict[tuple[str, float], Group] = {}
    for run in results.runs:
        if run.good:
            records, window_s = groups.get((run.target, run.rate), ([], 0.0))
            groups[run.target, run.rate] = ([*records, *_in_time(run)], window_s + run.until_s - run.from_s)
    return groups


def _in_time(run: Run) -> list[Record]:
    return sorted(run.counted, key=lambda record: record.intended_s)


def _pair(a: tuple[str, str, float], first: Group, b: tuple[str, str, float], second: Group) -> Pair:
    found: list[tuple[Metric, Difference]] = []
    for metric in METRICS:
        one, two = ([metric.value(record) for record in records] for records, _ in (first, second))
        found.append((metric, compared(one, two, metric.statistic)))
    rate_a, rate_b = (_good_rates(*group) for group in (first, second))
    found.append((GOODPUT, compared(rate_a, rate_b, GOODPUT.statistic)))
    sides = [
        Side(f"{name}: {target}", rate, len(g[0])) for (name, target, rate), g in ((a, first), (b, second))
    ]
    return Pair(sides[0], sides[1], tuple(found))


def _good_rates(records: list[Record], window_s: float) -> list[float | None]:
    """Their mean is the goodput."""
    return [float(met(record)) * len(records) / window_s for record in records]


def _notes(a: Results, b: Results) -> list[str]:
    notes = []
    for name in (
        "arrivals",
        "cv",
        "prompt_tokens",
        "output_tokens",
        "duration_s",
        "seed",
        "ttft_s",
        "tpot_s",
    ):
        one, two = getattr(a.experiment, name), getattr(b.experiment, name)
        if one != two:
            notes.append(f"{name} differs: {one} and {two}")
    if a.machine != b.machine:
        notes.append("the generators ran on different machines")
    return notes


def _table(pair: Pair) -> Table:
    shown = plain_table("", "a", "b", "b - a (95 %)", "b / a (95 %)", "b is")
    shown.title = f"a: {pair.a.name}, b: {pair.b.name}, at {pair.a.rate:.3g}/s"
    for metric, difference in pair.differences:
        shown.add_row(*cells(metric, difference))
    return shown


def cells(metric: Metric, found: Difference) -> list[str]:
    """Name, a, b, difference, ratio, verdict."""
    name = f"{metric.name}, {metric.unit}"
    if found.a is None or found.b is None or found.difference is None:
        return [
            name,
            *("-" if v is None else f"{v * metric.factor:,.3g}" for v in (found.a, found.b)),
            "-",
            "-",
            "",
        ]
    inside = [f"{v * metric.factor:+,.3g}" for v in (found.low or 0.0, found.high or 0.0)]
    ratio = "-" if found.ratio is None else f"{found.ratio:.2g}"
    if found.ratio is not None and found.ratio_low is not None and found.ratio_high is not None:
        ratio += f" ({found.ratio_low:.2g}..{found.ratio_high:.2g})"
    return [
        name,
        f"{found.a * metric.factor:,.3g}",
        f"{found.b * metric.factor:,.3g}",
        f"{found.difference * metric.factor:+,.3g} ({inside[0]}..{inside[1]})",
        ratio,
        verdict(metric, found),
    ]


def verdict(metric: Metric, found: Difference) -> str:
    """What b is."""
    if not found.clear or found.difference is None:
        return "unclear"
    return "better" if (found.difference > 0) == metric.more_is_better else "worse"
