"""Goodput of Baton and of the field's best as servers, on the same cores, by one open-loop load generator.

    .venv/bin/python -m baton.bench.peers --prepare --only none     # once: environments, weights
    .venv/bin/python -m baton.bench.peers_live --minutes 60         # the table; results and pages in --out

Poisson arrivals, prompts of 256 tokens, answers of 64. For each server and each pair of latency targets the
highest rate is searched at which 90 % of the requests meet both. All servers are started, but only one runs
at a time; the others are stopped (SIGSTOP). Their searches take turns, run by run, so that a machine that
slows down slows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from baton.bench.load import report
from baton.bench.load.generator import Limits, Log
from baton.bench.load.measure import empty_results
from baton.bench.load.one_run import Settings, Turn, run
from baton.bench.load.plan import token_writer
from baton.bench.load.results import Found, Results, Run, pooled, write
from baton.bench.load.target import Facts
from baton.bench.load.workload import Workload
from baton.bench.peers_search import LEAST_RATE, Hunt
from baton.bench.peers_servers import OUTPUT_TOKENS, PROMPT_TOKENS, VOCABULARY, Running, Server, servers
from baton.core.request import Slo
from baton.runtime.cpus import usable_cpus

ATTAINMENT = 0.9
TTFT_S = 2.0
TPOTS_S = (0.100, 0.050, 0.025)
WANTED = {0.100: 2.0, 0.050: 2.5, 0.025: 5.0}  # our goodput against the best peer's
LATE_S = 0.1  # of the generator: a twentieth of the TTFT target, a sixtieth of it per token
LIMITS = Limits(timeout_s=60.0, drain_s=TTFT_S + OUTPUT_TOKENS * TPOTS_S[0])  # what ends later has missed
GENERATOR_FIRST = 3  # of that much lower niceness than the servers: late requests are nobody's figures

notes = Console(stderr=True, width=140)


class Contender(NamedTuple):
    running: Running
    hunt: Hunt

    @property
    def name(self) -> str:
        return self.running.server.name


class Comparison:
    """goals: targets, from loose to tight."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._salt = int(time.time() * 1e3)
        self._turns = 0
        self.goals = [Slo(TTFT_S, tpot_s) for tpot_s in options.tpots]
        self.contenders: list[Contender] = []

    async def start(self, chosen: list[Server]) -> None:
        """All of them, one after the other."""
        options = self._options
        for server in chosen:
            running = Running(server, options.out / f"{server.name.replace(' ', '-')}.log")
            start = start_rate(options.start, server.name)
            hunt = Hunt(self.goals, start, options.precision, options.rounds, ATTAINMENT, server.ours)
            self.contenders.append(Contender(running, hunt))
            notes.print(f"starting {server.name}")
            await running.ready()
            for pid in running.pids():
                _before_others(pid, options.nice)
            running.pause()

    async def search(self) -> None:
        """Until all is known or the time is over, a run of each in turn."""
        until = time.monotonic() + self._options.minutes * 60
        while left := [each for each in self.contenders if each.hunt.next_run() is not None]:
            for contender in left:
                if time.monotonic() > until:
                    return
                await self._run(contender)

    async def close(self) -> None:
        for contender in self.contenders:
            await contender.running.target.close()
            contender.running.close()

    def results(self, goal: Slo) -> Results:
        targets = [each.running.target for each in self.contenders]
        found = empty_results(targets, [Facts() for _ in targets], self._settings(goal))
        for each in self.contenders:
            found.runs += each.hunt.judged(goal)
            found.found.append(each.hunt.found(each.name)[self.goals.index(goal)])
        found.pools = pooled(found.runs)
        return found

    async def _run(self, contender: Contender) -> None:
        wanted = contender.hunt.next_run()
        assert wanted is not None
        goal, rate, number = wanted
        self._turns += 1
        with _awake(contender.running):
            turn = Turn(rate, number, self._turns, hopeless=True)
            target = contender.running.target
            done = await run(target, token_writer(VOCABULARY), self._settings(goal), turn, _quiet)
        contender.hunt.add(goal, done)
        notes.print(_told(contender.name, goal, done))

    def _settings(self, goal: Slo) -> Settings:
        options = self._options
        return Settings(
            workload=Workload(str(PROMPT_TOKENS), str(OUTPUT_TOKENS)),
            slo=goal,
            attainment=ATTAINMENT,
            duration_s=options.duration + options.warmup,
            warmup_s=options.warmup,
            rounds=options.rounds,
            salt=self._salt,
            max_lateness_s=LATE_S,
            limits=LIMITS,
        )


@contextlib.contextmanager
def _awake(running: Running) -> Iterator[None]:
    running.resume()
    try:
        yield
    finally:
        running.pause()


def _before_others(pid: int, nice: int) -> None:
    """Whoever may not (it takes root) measures on an idle machine, or as well as that goes. Linux may weigh
    sessions against each other, and threads within a session only (sched(7), autogroup)."""
    with contextlib.suppress(OSError):
        for thread in psutil.Process(pid).threads():
            os.setpriority(os.PRIO_PROCESS, thread.id, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def _ms(goal: Slo) -> float:
    return (goal.tpot_s or 0.0) * 1e3


def _quiet(name: str, rate: float, requests: int, log: Log, now_s: float) -> None:
    pass


def _told(name: str, goal: Slo, done: Run) -> str:
    summary = done.summary
    ttft, tpot = summary.ttft_s.p90 or 0.0, (summary.tpot_s.p90 or 0.0) * 1e3
    ended = "" if done.stopped_s is None else f", ended at {done.stopped_s:.0f} s"
    kept = f"{summary.goodput.attainment:4.0%} of {summary.requests:3}"
    asked = f"{name:16} {done.rate:5.2f}/s round {done.round + 1}, TPOT {_ms(goal):3.0f} ms"
    late = f", {done.invalid}" if done.invalid else ""
    return f"{asked}: {kept} (P90 {ttft:.2f} s, {tpot:.1f} ms){ended}{late}"


def table(goals: Sequence[Slo], names: list[str], found: dict[str, list[Found]], ours: set[str]) -> Table:
    """found: by server, its answers by target, from loose to tight."""
    title = f"highest requests/s with {ATTAINMENT:.0%} within TTFT <= {TTFT_S:g} s and TPOT"
    shown = Table(title=f"{title}; {usable_cpus()} cores")
    shown.add_column("")
    for goal in goals:
        shown.add_column(f"<= {_ms(goal):g} ms", justify="right")
    for name in names:
        shown.add_row(name, *map(cell, found[name]))
    shown.add_section()
    ratios = [ratio(names, found, ours, place) for place in range(len(goals))]
    shown.add_row("our best / best peer", *ratios)
    shown.add_row("wanted", *(f"{WANTED.get(goal.tpot_s or 0, 0):g}" for goal in goals))
    return shown


def cell(found: Found) -> str:
    failed = "" if found.failed_rate is None else f" (not {found.failed_rate:.2f})"
    return f"{found.rate:.2f}{failed}" if found.rate else f"none{failed}"


def ratio(names: list[str], found: dict[str, list[Found]], ours: set[str], place: int) -> str:
    best = max((found[name][place].rate for name in names if name in ours), default=0.0)
    peer = max((found[name][place].rate for name in names if name not in ours), default=0.0)
    if not peer:
        return f"> {best / LEAST_RATE:.1f}" if best else "-"
    return f"{best / peer:.2f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="baton.bench.peers_live", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache/baton/peers", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("peers-live"), metavar="DIR", help="for results")
    parser.add_argument("--only", default="", help="parts of servers' names, comma separated")
    parser.add_argument("--minutes", type=float, default=60.0, help="then say what is known")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of a run that count")
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before them")
    parser.add_argument("--rounds", type=int, default=2, help="runs at a rate, with other arrivals each")
    parser.add_argument("--precision", type=float, default=0.1, help="of the rates: 0.1 for 10 %%")
    parser.add_argument("--start", default="1", help="rates to begin with: 1, or baton=3,openvino=2,1")
    parser.add_argument("--tpots", type=float, nargs="+", default=TPOTS_S, help="targets, loose to tight")
    parser.add_argument("--nice", type=int, default=0, help="of all servers: below 0 before other work")
    return parser.parse_args()


def start_rate(text: str, name: str) -> float:
    """The first of the comma-separated rates that is for all names or for a part of this one."""
    for part in text.split(","):
        wanted, equals, rate = part.rpartition("=")
        if not equals or wanted.lower() in name.lower():
            return float(rate)
    return 1.0


async def compare(options: argparse.Namespace) -> None:
    parts = [part.lower() for part in options.only.split(",") if part]
    chosen = [
        server
        for server in servers(options.dir, usable_cpus())
        if not parts or any(part in server.name.lower() for part in parts)
    ]
    comparison = Comparison(options)
    try:
        await comparison.start(chosen)
        _before_others(os.getpid(), options.nice - GENERATOR_FIRST)
        await comparison.search()
    finally:
        await comparison.close()
        show(comparison, options.out)


def show(comparison: Comparison, folder: Path) -> None:
    names = [each.name for each in comparison.contenders]
    ours = {each.name for each in comparison.contenders if each.running.server.ours}
    found = {each.name: each.hunt.found(each.name) for each in comparison.contenders}
    for goal in comparison.goals:
        results = comparison.results(goal)
        stem = folder / f"tpot-{_ms(goal):g}ms"
        write(results, stem.with_suffix(".json.gz"))
        stem.with_suffix(".html").write_text(report.page_of(results), encoding="utf-8")
    said = {name: [cell(each) for each in found[name]] for name in names}
    (folder / "table.json").write_text(json.dumps(said, indent=1))
    Console(width=120).print(table(comparison.goals, names, found, ours))


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    uvloop.run(compare(options))


if __name__ == "__main__":
    main()
