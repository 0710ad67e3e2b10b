"""One simulated run: of a deployment's file, or of a few options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from baton.cli.simulate_asked import Asked
from baton.cli.terminal import answers, notes
from baton.core.errors import InvalidArgument
from baton.core.load import Role
from baton.router.events import Complete, Effect, Event, Reject
from baton.router.machine_config import RouterConfig
from baton.router.planner import PlannerConfig
from baton.router.policy import Chooser
from baton.sim.baselines.catalogue import BASELINES, baseline
from baton.sim.experiments.run_page import Run, as_json, latency_rows, run_page
from baton.sim.experiments.setting import TARGET_SPANS
from baton.sim.experiments.timeline import Timeline
from baton.sim.profiles import profile
from baton.sim.report.scale import number, seconds, share
from baton.sim.spec import ClusterSpec, NodeSpec, Profile
from baton.sim.workload.arrivals import offered_rate
from baton.sim.world import Checks, Options, World

if TYPE_CHECKING:
    from baton.runtime.config import ClusterConfig


def run_once(asked: Asked) -> None:
    """The table says what every figure is; --json holds more."""
    load = asked.load()
    cluster, config = _cluster(asked)
    policy, cluster, config = _policy(asked, cluster, config)
    timeline = Timeline()
    with Watching(len(load), timeline) as watching:
        world = World(cluster, asked.seed, config, policy, Options(checks=Checks(every=0)), watching.watch)
        results = world.run(load)
    rate = offered_rate(load)
    told = _told(asked, cluster, rate, len(load))
    run = Run("Simulated run", told, asked.slo, rate, results, timeline, cluster.gpus)
    asked.write(as_json(run), run_page(run) if asked.html else "")
    if not asked.as_json:
        answers.print(_table(run))


class Watching:
    """A bar on the terminal, moved as requests end."""

    def __init__(self, requests: int, timeline: Timeline) -> None:
        columns = (TextColumn("{task.completed}/{task.total} requests"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=notes, transient=True, refresh_per_second=4, disable=not notes.is_terminal
        )
        self._task = self._progress.add_task("", total=requests)
        self._timeline = timeline

    def watch(self, now: float, event: Event, effects: list[Effect]) -> None:
        self._timeline.watch(now, event, effects)
        ended = sum(isinstance(effect, (Complete, Reject)) for effect in effects)
        if ended:
            self._progress.advance(self._task, ended)

    def __enter__(self) -> Watching:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _cluster(asked: Asked) -> tuple[ClusterSpec, RouterConfig]:
    """Options go before the file."""
    deployment, config = None, RouterConfig()
    counts = {Role.PREFILL: asked.prefill, Role.DECODE: asked.decode, Role.BOTH: asked.both}
    nodes: list[NodeSpec] = []
    if asked.config is not None:
        from baton.cli.router import machine_config
        from baton.runtime.config import load_config

        deployment = load_config(asked.config).resolved()
        config = machine_config(deployment.router, 0, fetch=deployment.transfer.fetch)
        counts = {
            role: deployment.nodes(role).size if count is None else count for role, count in counts.items()
        }
    elif all(count is None for count in counts.values()):
        counts = {Role.PREFILL: 1, Role.DECODE: 1, Role.BOTH: 0}
    for role, count in counts.items():
        if count:
            kind = _kind(asked, role, deployment)
            nodes += [NodeSpec(f"{role.value[0]}{i}", role, kind) for i in range(count)]
    if not nodes:
        raise InvalidArgument("no nodes: say how many with --prefill, --decode, --both", field="nodes")
    for role, does in ((Role.PREFILL, "prompts"), (Role.DECODE, "answers")):
        if not any(node.role in (role, Role.BOTH) for node in nodes):
            raise InvalidArgument(
                f"none is there for {does}: say --{role.value} or --both, 1 or more", field="nodes"
            )
    if asked.planner is not None:
        config = replace(config, planner=PlannerConfig() if asked.planner else None)
    return ClusterSpec(tuple(nodes)), config


def _kind(asked: Asked, role: Role, deployment: ClusterConfig | None) -> Profile:
    """Degrees are the file's, if it says some and the profile's name does not."""
    name = asked.decode_profile if role is Role.DECODE and asked.decode_profile else asked.profile
    nodes = deployment.nodes(role) if deployment is not None else None
    told = nodes is not None and "tensor_parallel" in nodes.model_fields_set
    return profile(name, nodes.tensor_parallel if nodes is not None and told else None)


def _policy(
    asked: Asked, cluster: ClusterSpec, config: RouterConfig
) -> tuple[Chooser | None, ClusterSpec, RouterConfig]:
    if asked.policy == "Baton":
        return None, cluster, config
    names = [each.name for each in BASELINES]
    if asked.policy not in names:
        raise InvalidArgument(f"is {asked.policy!r}; there are Baton, {', '.join(names)}", field="policy")
    each = baseline(asked.policy)
    return each.make(asked.seed), replace(cluster, fcfs=True), each.config()


def _told(asked: Asked, cluster: ClusterSpec, rate: float, count: int) -> tuple[tuple[str, str], ...]:
    load = asked.trace[0].name if asked.trace else f"gaps with cv {asked.cv:g}"
    pools = [(role, sum(node.role is role for node in cluster.nodes)) for role in Role]
    split = ", ".join(f"{size} {role.value}" for role, size in pools if size)
    spanning = cluster.gpus != len(cluster.nodes)
    return (
        ("profile", " and ".join(dict.fromkeys(node.profile.name for node in cluster.nodes))),
        ("nodes", split),
        *((("devices", f"{cluster.gpus:g} devices"),) if spanning else ()),
        ("policy", asked.policy),
        ("load", f"{count:,} requests of {load} at {number(rate)}/s"),
        ("seed", str(asked.seed)),
    )


def _good(run: Run) -> str:
    rate = number(run.summary.goodput_rps)
    if run.devices != len(run.results.busy):
        rate = f"{rate}/s, {number(run.summary.goodput_rps / run.devices)} per device,"
    else:
        rate += "/s"
    if run.slo.ttft_s is None and run.slo.tpot_s is None:
        return f"{rate} served, until the last answer ended,"
    return f"{rate} within targets ({share(run.summary.attained)})"


def _table(run: Run) -> Table:
    summary, changes = run.summary, run.timeline.changes
    table = Table(title=", ".join(value for name, value in run.told if name != "seed"), title_justify="left")
    for column in ("", "median", "P90", "P99", "most"):
        table.add_column(column, justify="right" if column else "left")
    for row in latency_rows(summary):
        table.add_row(*row)
    busy = run.results.busy.values()
    table.caption = "; ".join(
        (
            f"{_good(run)} of {number(run.rate)}/s offered",
            *_burst(run),
            f"{summary.rejected} of {summary.requests} not served",
            f"nodes busy {share(sum(busy) / max(1, len(busy)))}",
            f"{changes} role changes",
            f"{seconds(run.results.seconds)} simulated",
        )
    )
    return table


def _burst(run: Run) -> list[str]:
    """What is to be said where requests came for too short a time to speak of a rate."""
    span_s = run.summary.span_s
    brief = span_s < TARGET_SPANS * (run.slo.ttft_s or 0.0)
    return [f"a burst, no rate: all came within {seconds(span_s)}"] if brief else []
