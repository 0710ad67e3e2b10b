"""A plan as a table for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from baton.core.request import Slo
from baton.sim.experiments.plan import Layout, Plan, Tried
from baton.sim.report.scale import number, seconds
from baton.sim.spec import Profile


def table(plan: Plan, slo: Slo) -> Table:
    """What was simulated, the best first; then what was estimated only."""
    best = plan.best
    shown = Table(
        title=f"{number(best.rate)} requests/s, {number(best.per_device)} per device, of {_names(plan)}",
        title_justify="left",
        caption=_caption(best, slo),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("nodes", "devices", "requests/s", "per device", "held back by"):
        shown.add_column(column, justify="left" if column in ("nodes", "held back by") else "right")
    several = len({_device(kind) for kind in _kinds(plan)}) > 1
    for each in plan.tried:
        told = nodes(each.layout, several) + (", rejecting" if each.admission == "reject" else "")
        figures = (number(each.layout.devices), number(each.rate), number(each.per_device))
        shown.add_row(told, *figures, each.layout.estimate.by, style="bold" if each is best else "")
    for layout in plan.left:
        shown.add_row(nodes(layout, several), *_estimated(layout, best), layout.estimate.by, style="dim")
    return shown


def _estimated(layout: Layout, best: Tried) -> tuple[str, str, str]:
    """devices, requests/s, per device: the bound, where that is why it was not simulated."""
    sign, rate = "~", layout.estimate.rate
    if layout.estimate.most / layout.devices < best.per_device:
        sign, rate = "< ", layout.estimate.most
    return number(layout.devices), f"{sign}{number(rate)}", f"{sign}{number(rate / layout.devices)}"


def _caption(best: Tried, slo: Slo) -> str:
    pairs = (("TTFT", best.ttft_p90_s, slo.ttft_s), ("TPOT", best.tpot_p90_s, slo.tpot_s))
    said = [
        f"{name} P90 {seconds(found)} of {seconds(limit)}"
        for name, found, limit in pairs
        if limit is not None
    ]
    return (
        f"At that rate: {', '.join(said)}. ~: estimated, <: less than so much by arithmetic; not simulated."
    )


def _names(plan: Plan) -> str:
    """Model and device, without degrees."""
    names = (kind.name.removesuffix(f"x{kind.gpus:g}") for kind in _kinds(plan))
    return " and ".join(dict.fromkeys(names))


def _device(kind: Profile) -> str:
    return kind.name.partition("@")[2].partition("x")[0] or kind.name


def _kinds(plan: Plan) -> list[Profile]:
    every = [each.layout for each in plan.tried] + list(plan.left)
    return [kind for layout in every for _, _, kind in layout.pools]


def nodes(layout: Layout, several: bool) -> str:
    """`2 TP1 prefill, 1 TP4 decode`; several: the device is named as well."""
    words = []
    for count, role, kind in layout.pools:
        words.append(f"{count} {_device(kind) + ' ' if several else ''}TP{kind.gpus:g} {role}")
    return ", ".join(words)


def as_json(plan: Plan, told: Sequence[str], out: Path) -> dict[str, Any]:
    best = plan.best
    return {
        "layout": str(best.layout),
        "pools": _pools(best.layout),
        "admission": best.admission,
        "rate": best.rate,
        "rate_per_device": best.per_device,
        "tried": [
            _layout(each.layout)
            | {
                "admission": each.admission,
                "rate": each.rate,
                "rate_per_device": each.per_device,
                "ttft_p90_s": _finite(each.ttft_p90_s),
                "tpot_p90_s": _finite(each.tpot_p90_s),
            }
            for each in plan.tried
        ],
        "estimated": [
            _layout(layout)
            | {
                "rate": layout.estimate.rate,
                "rate_per_device": layout.estimate.rate / layout.devices,
                "most": layout.estimate.most,
            }
            for layout in plan.left
        ],
        "notes": list(told),
        "file": str(out),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _layout(layout: Layout) -> dict[str, Any]:
    return {
        "layout": str(layout),
        "pools": _pools(layout),
        "devices": layout.devices,
        "held_back_by": layout.estimate.by,
    }


def _pools(layout: Layout) -> list[dict[str, Any]]:
    return [
        {"role": role, "nodes": count, "tensor_parallel": round(kind.gpus), "profile": kind.name}
        for count, role, kind in layout.pools
    ]
