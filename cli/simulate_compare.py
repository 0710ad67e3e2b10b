"""All policies against each other, on one or several traces."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from baton.cli.simulate_asked import Asked
from baton.cli.terminal import answers, notes
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.sim.experiments.compare import Table, compare
from baton.sim.experiments.compare_page import compare_page, table_rows, titles
from baton.sim.experiments.contenders import ABLATIONS, BATON, ORACLE, PUBLISHED, Contender
from baton.sim.experiments.setting import Setting, setting_from
from baton.sim.workload.arrivals import with_slo

QUICK_REQUESTS, QUICK_PRECISION = 300, 0.1


def run_compare(asked: Asked) -> None:
    if asked.decode_profile is not None:
        raise InvalidArgument(
            "goes with a single run: policies are compared on alike nodes", field="decode-profile"
        )
    settings = [_setting(asked, number) for number in range(len(asked.trace or ()))]
    settings = settings or [_synthetic(asked)]
    precision = QUICK_PRECISION if asked.quick else asked.precision
    columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.description}"), console=notes, disable=not notes.is_terminal)
    with bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        workers = asked.workers or os.cpu_count() or 1
        tables = compare(settings, _contenders(asked), precision, workers, show)
    asked.write([asdict(table) for table in tables], compare_page(tables) if asked.html else "")
    if not asked.as_json:
        for table in tables:
            answers.print(_shown(table))


def _contenders(asked: Asked) -> list[Contender]:
    known = {each.name: each for each in (*PUBLISHED, BATON, *ABLATIONS, ORACLE)}
    wrong = [name for name in asked.only or () if name not in known]
    if wrong:
        raise InvalidArgument(f"is {wrong[0]!r}; there are {', '.join(known)}", field="only")
    return [known[name] for name in asked.only or known]


def _setting(asked: Asked, number: int) -> Setting:
    assert asked.trace is not None
    count = asked.requests or (QUICK_REQUESTS if asked.quick else None)
    setting = setting_from(
        asked.trace[number], asked.kind, asked.nodes, count, seed=asked.seed, skip=asked.skip
    )
    return _targeted(replace(setting, attainment=asked.attainment), asked.slo)


def _synthetic(asked: Asked) -> Setting:
    load = tuple(asked.load(default_rate=1.0))
    setting = Setting("synthetic", load, asked.slo, asked.kind, asked.nodes, asked.seed, asked.attainment)
    if asked.slo == Slo():
        raise InvalidArgument("say targets: --ttft, --tpot, or both", field="ttft")
    return setting


def _targeted(setting: Setting, slo: Slo) -> Setting:
    """Targets that were given take the place of those of the trace's kind."""
    if slo == Slo():
        return setting
    return replace(setting, slo=slo, arrivals=tuple(with_slo(setting.arrivals, slo)))


def _shown(table: Table) -> RichTable:
    shown = RichTable(title=titles(table)[0], caption=titles(table)[1], title_justify="left")
    head, *rows = table_rows(table)
    for i, name in enumerate(head):
        shown.add_column(name, justify="left" if i < 2 else "right")
    for row in rows:
        shown.add_row(*row, style="bold" if row[0] == "Baton" else "")
    return shown
