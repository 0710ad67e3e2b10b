"""A simulated run as a page, a table and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from baton.core.request import Slo
from baton.sim.experiments.timeline import Timeline
from baton.sim.report.bars import Bar, bars
from baton.sim.report.figure import Mark
from baton.sim.report.lanes import Span, lanes
from baton.sim.report.lines import Series, cdf, lines
from baton.sim.report.page import facts, page, section, table, tiles
from baton.sim.report.scale import Axis, number, seconds, share
from baton.sim.results import RequestResult, Summary, summarise
from baton.sim.world import Results

KINDS = ("prefill", "decode", "both", "gone")


@dataclass(frozen=True, slots=True)
class Run:
    """told: what the run was given, as (name, value). devices: of all nodes; one may take several."""

    title: str
    told: tuple[tuple[str, str], ...]
    slo: Slo
    rate: float
    results: Results
    timeline: Timeline
    devices: float

    @property
    def summary(self) -> Summary:
        return summarise(self.results.requests)


def as_json(run: Run) -> dict[str, Any]:
    """Everything but the single requests."""
    return {
        "told": dict(run.told),
        "rate": run.rate,
        "devices": run.devices,
        "summary": asdict(run.summary),
        "busy": run.results.busy,
        "roles": [asdict(stay) for stay in run.timeline.stays()],
        "simulated_s": run.results.seconds,
        "events": run.results.events,
    }


def latency_rows(summary: Summary) -> list[tuple[str, ...]]:
    """(what, median, P90, P99, most)."""
    both = (("TTFT", summary.ttft_s), ("TPOT", summary.tpot_s))
    return [(name, *(seconds(v) for v in (s.p50, s.p90, s.p99, s.most))) for name, s in both]


def run_page(run: Run) -> str:
    summary, slo = run.summary, run.slo
    figures = tiles(
        [
            (
                "Goodput",
                f"{number(summary.goodput_rps)}/s",
                f"of {number(run.rate)}/s offered{_per_device(run)}",
            ),
            ("Within targets", share(summary.attained), f"of {summary.requests:,} requests"),
            ("TTFT, P90", seconds(summary.ttft_s.p90), _target(slo.ttft_s)),
            ("TPOT, P90", seconds(summary.tpot_s.p90), _target(slo.tpot_s)),
            ("Turned away", share(summary.rejected / max(1, summary.requests)), "rejected or failed"),
        ]
    )
    rows = latency_rows(summary)
    return page(
        run.title,
        ", ".join(value for name, value in run.told if name != "seed"),
        [
            figures,
            section("Latency", *_latency(run), table(("", "median", "P90", "P99", "most"), rows)),
            section("Nodes", *_nodes(run)),
            section("Given", facts(run.told)),
        ],
    )


def _per_device(run: Run) -> str:
    if run.devices == len(run.results.busy):
        return ""
    return f", {number(run.summary.goodput_rps / run.devices)} per device"


def _target(value: float | None) -> str:
    return "no target" if value is None else f"target {seconds(value)}"


def _latency(run: Run) -> list[str]:
    requests, slo = run.results.requests, run.slo
    ttft = cdf("TTFT", [t for r in requests if (t := r.ttft_s) is not None])
    tpot = cdf("TPOT", [t for r in requests if (t := r.tpot_s) is not None], colour=1)
    up = Axis("share of requests, %", low=0.0, high=1.0, factor=100.0)
    first = [Mark("target", x=slo.ttft_s)] if slo.ttft_s is not None else []
    each = [Mark("target", x=slo.tpot_s)] if slo.tpot_s is not None else []
    return [
        lines("Time to first token", [ttft], Axis("seconds", log=True), up, first),
        lines("Time per token after it", [tpot], Axis("milliseconds", factor=1e3), up, each),
        lines(
            "Time to first token, by arrival",
            _ttft_over_time(requests),
            Axis("seconds since the start"),
            Axis("seconds"),
            [Mark("target", y=slo.ttft_s)] if slo.ttft_s is not None else [],
        ),
        _attained_by_length(requests),
    ]


def _ttft_over_time(requests: Sequence[RequestResult]) -> list[Series]:
    """Median and P90 in fifty windows."""
    ordered = sorted(requests, key=lambda r: r.arrived_s)
    size = max(1, len(ordered) // 50)
    groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    medians, tails = [], []
    for group in groups:
        spread = summarise(group).ttft_s
        at_s = group[len(group) // 2].arrived_s
        medians.append((at_s, spread.p50))
        tails.append((at_s, spread.p90))
    return [Series("median", medians), Series("P90", tails)]


def _attained_by_length(requests: Sequence[RequestResult]) -> str:
    """Who pays for it if not all can be served: by prompt length, in fifths."""
    lengths = sorted(r.prompt_tokens for r in requests)
    edges = sorted({lengths[len(lengths) * i // 5] for i in range(5)}) if lengths else []
    rows = []
    for low, high in zip(edges, [*edges[1:], math.inf], strict=True):
        group = [r for r in requests if low <= r.prompt_tokens < high]
        name = f"{low:,} or more" if high == math.inf else f"{low:,} to {high - 1:,}"
        attained = sum(r.meets() for r in group) / len(group)
        rows.append(Bar(name, attained, share(attained), strong=True))
    axis = Axis("within targets, %", low=0.0, high=1.0, factor=100.0)
    return bars("Within targets, by prompt tokens", rows, axis)


def _nodes(run: Run) -> list[str]:
    busy = [
        Bar(name, value, share(value), strong=True) for name, value in list(run.results.busy.items())[:32]
    ]
    stays = run.timeline.stays()
    by_node: dict[str, list[Span]] = {}
    for stay in stays:
        by_node.setdefault(stay.node_id, []).append(Span(stay.from_s, stay.until_s, stay.role))
    shown = [kind for kind in KINDS if any(stay.role == kind for stay in stays)]
    time = Axis("seconds since the start")
    return [
        bars("Busy", busy, Axis("share of the run, %", low=0.0, high=1.0, factor=100.0)),
        lines("Requests on nodes", _pools(run.timeline, 1), time, Axis("requests per node")),
        lines(
            "KV blocks in use",
            _pools(run.timeline, 2),
            time,
            Axis("share, %", low=0.0, high=1.0, factor=100.0),
        ),
        lanes("Roles", list(by_node.items()), shown, time),
    ]


def _pools(timeline: Timeline, column: int) -> list[Series]:
    """The mean over the nodes that had a role, by the role they had at first, in two hundred windows."""
    window_s = max(timeline.end_s / 200, 1e-9)
    sums: dict[str, dict[int, list[float]]] = {}
    for lane in timeline.lanes.values():
        role = lane.roles[0][1]
        for sample in lane.samples:
            sums.setdefault(role, {}).setdefault(int(sample[0] / window_s), []).append(float(sample[column]))
    return [
        Series(
            role,
            [(slot * window_s, sum(values) / len(values)) for slot, values in sorted(slots.items())],
            colour=KINDS.index(role),
        )
        for role, slots in sums.items()
    ]
