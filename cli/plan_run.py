"""What `baton plan` does with its options."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from baton.cli.plan_file import deployment, opening, write_checked
from baton.cli.plan_table import as_json, table
from baton.cli.simulate_asked import Load
from baton.cli.terminal import answers, fail, notes
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.plan import Field, Plan, layouts, make_plan
from baton.sim.experiments.setting import Setting
from baton.sim.profiles import degrees
from baton.sim.report.scale import number, seconds
from baton.sim.spec import Profile

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
    kinds, told = _kinds(wanted)
    load = tuple(wanted.load(default_rate=1.0))
    field = layouts(load, wanted.slo, kinds, wanted.devices, wanted.attainment)
    setting = Setting("load", load, wanted.slo, kinds[0], 1, wanted.seed, wanted.attainment)
    begun_s = time.monotonic()
    plan = _search(wanted, setting, field)
    if not plan.best.rate:
        fail("no layout keeps the targets at any rate")
    command = f"baton {shlex.join(sys.argv[1:])}" if sys.argv[1:2] == ["plan"] else ""
    write_checked(
        wanted.out, deployment(plan, wanted.slo, wanted.model), opening(plan, wanted.model, command)
    )
    told += field.unfit
    if wanted.as_json:
        answers.print(json.dumps(as_json(plan, told, wanted.out), indent=1), markup=False)
        return
    told.append(f"found in {seconds(time.monotonic() - begun_s)}")
    if plan.best.rate > 0.8 * setting.most_rate:
        told.append(f"rates above {number(setting.most_rate)}/s were not tried")
    answers.print(table(plan, wanted.slo))
    for line in told:
        answers.print(line, markup=False, highlight=False)
    answers.print(f"written: {wanted.out}", markup=False, highlight=False)


def _kinds(wanted: Wanted) -> tuple[list[Profile], list[str]]:
    """What nodes there may be, and what is to be said of the degrees that are not among them."""
    kinds: dict[str, Profile] = {}
    told: list[str] = []
    for name in wanted.profile or [DEFAULT_PROFILE]:
        found = degrees(name)
        kinds |= {kind.name: kind for kind in found.profiles}
        told += found.told
    return list(kinds.values()), told


def _search(wanted: Wanted, setting: Setting, field: Field) -> Plan:
    columns = (SpinnerColumn(), TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=notes, disable=not notes.is_terminal)
    with bar:
        count = min(wanted.candidates, len(field.families()))
        task = bar.add_task(f"{count} kinds of layout, each at several rates: minutes", total=count + 1)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        workers = wanted.workers or os.cpu_count() or 1
        return make_plan(setting, field, wanted.candidates, wanted.precision, workers, show)
