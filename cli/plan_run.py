"""What `baton plan` does with its options."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from baton.cli.plan_file import deployment, opening, write_checked
from baton.cli.simulate_asked import Load
from baton.cli.terminal import answers, fail, notes
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.plan import Plan, layouts, make_plan
from baton.sim.experiments.setting import Setting
from baton.sim.profiles import profile as profile_of
from baton.sim.report.scale import number, seconds

DEFAULT_PROFILE = "llama-3.1-8b@h100"


@dataclass(frozen=True)
class Wanted(Load):
    """The options of `baton plan`, as they are in `cli.plan`."""

    attainment: float
    profile: list[str] | None
    devices: int
    candidates: int
    model: str | None
    precision: float
    workers: int | None
    as_json: bool
    out: Path


def run_plan(wanted: Wanted) -> None:
    if wanted.slo == Slo():
        raise InvalidArgument("say targets: --ttft, --tpot, or both", field="ttft")
    kinds = [profile_of(name) for name in wanted.profile or [DEFAULT_PROFILE]]
    load = tuple(wanted.load(default_rate=1.0))
    found = layouts(load, wanted.slo, kinds, wanted.devices)[: wanted.candidates]
    setting = Setting("load", load, wanted.slo, kinds[0], 1, wanted.seed, wanted.attainment)
    columns = (SpinnerColumn(), TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=notes, disable=not notes.is_terminal)
    with bar:
        begun_s = time.monotonic()
        task = bar.add_task(f"{len(found)} layouts, each at several rates: minutes", total=len(found) + 1)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        workers = wanted.workers or os.cpu_count() or 1
        plan = make_plan(setting, found, wanted.precision, workers, show)
    if not plan.rate:
        fail("no layout keeps the targets at any rate")
    command = f"baton {shlex.join(sys.argv[1:])}" if sys.argv[1:2] == ["plan"] else ""
    write_checked(
        wanted.out, deployment(plan, wanted.slo, wanted.model), opening(plan, wanted.model, command)
    )
    if wanted.as_json:
        answers.print(json.dumps(_json(plan, wanted.out), indent=1), markup=False)
    else:
        answers.print(_table(plan, setting.most_rate, time.monotonic() - begun_s))
        answers.print(f"written: {wanted.out}")


def _json(plan: Plan, out: Path) -> dict[str, Any]:
    return {
        "layout": str(plan.layout),
        "admission": plan.admission,
        "rate": plan.rate,
        "rate_per_device": plan.per_device,
        "tried": [dict(zip(("layout", "admission", "rate"), each, strict=True)) for each in plan.tried],
        "file": str(out),
    }


def _table(plan: Plan, most_rate: float, took_s: float) -> Table:
    table = Table(title=f"{number(plan.rate)} requests/s, {number(plan.per_device)} per device")
    for column in ("layout", "admission", "requests/s"):
        table.add_column(column, justify="right" if column == "requests/s" else "left")
    for layout, admission, rate in sorted(plan.tried, key=lambda each: -each[2]):
        best = (layout, admission) == (str(plan.layout), plan.admission)
        table.add_row(layout, admission, number(rate), style="bold" if best else "")
    said = [f"found in {seconds(took_s)}"]
    if plan.rate > 0.8 * most_rate:
        said.append(f"rates above {number(most_rate)}/s were not tried")
    table.caption = "; ".join(said)
    return table
