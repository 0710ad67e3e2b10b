"""Real deployments for tests: real processes, real sockets, a client, and a check that nothing leaked.

async with running(config(model, prefill=1, decode=2)) as cluster:
    answer = await cluster.client.generate(prompt, max_tokens=8, temperature=0.0)
    cluster.kill("decode-0")
    await cluster.idle()
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from baton.proto.v1.admin_pb2 import DrainNodeRequest, GetClusterRequest, GetClusterResponse, NodeState
from baton.proto.v1.admin_pb2_grpc import AdminStub
from baton.runtime.client.aio import AsyncClient
from baton.runtime.config import ClusterConfig
from baton.runtime.grpc_channel import channel
from baton.runtime.launcher import NODE, ROUTER, Launcher
from baton.runtime.process import Program
from baton.runtime.supervisor import Member
from tests.patience import Patience

RPC_S = 30.0
START_S = 100.0  # of processes on a busy machine
IDLE_WITHIN_S = 4.0
"""Less than the lease of a hand-off: what is left comes back because somebody said so."""


PATIENT: dict[str, Any] = {"lease_s": 10.0}
"""A process that a busy machine lets stand still for some seconds is not dead: one that died is known by its
connections, and what a lease is for has tests with leases of their own."""

ALL_AT_ONCE: dict[str, Any] = {"max_node_wait_s": 1000.0}
"""Prompts go to their node as they come. Else it depends on how fast the router has found the node whether
some wait in the router."""


def config(
    model: Path | str, *, prefill: int = 1, decode: int = 1, both: int = 0, **sections: dict[str, Any]
) -> ClusterConfig:
    """A small deployment of `model`. sections: changes by section, as in the YAML file."""
    # The references are fp32 models of what a checkpoint's blocks stand for.
    engine = {"threads": 1, "block_size": 4, "num_blocks": 512, "quantization": "none"} | sections.pop(
        "engine", {}
    )
    document: dict[str, Any] = {
        "model": str(model),
        "engine": engine,
        "prefill": {"count": prefill} | sections.pop("prefill_nodes", {}),
        "decode": {"count": decode} | sections.pop("decode_nodes", {}),
        "both": {"count": both} | sections.pop("both_nodes", {}),
        "router": PATIENT | sections.pop("router", {}),
        "logging": {"level": "info"},
    } | sections
    return ClusterConfig.model_validate(document)


class Deployment:
    """What can be asked of a deployment through its router, wherever its parts run."""

    client: AsyncClient

    @property
    def endpoint(self) -> str:
        raise NotImplementedError

    async def state(self) -> GetClusterResponse:
        """What the router says of itself and its nodes."""
        async with channel(self.endpoint) as connection:
            return await AdminStub(connection).GetCluster(GetClusterRequest(), timeout=RPC_S)

    async def node(self, name: str) -> NodeState:
        state = await self.state()
        return next(node for node in state.nodes if node.registration.node_id == name)

    async def drain(self, name: str, draining: bool = True) -> None:
        """Have a node take nothing new, or (False) take it again."""
        async with channel(self.endpoint) as connection:
            request = DrainNodeRequest(node_id=name, draining=draining)
            await AdminStub(connection).DrainNode(request, timeout=RPC_S)

    @asynccontextmanager
    async def only(self, *names: str) -> AsyncIterator[None]:
        """Within the block no other node is given anything new."""
        state = await self.state()
        others = {node.registration.node_id for node in state.nodes} - set(names)
        for name in others:
            await self.drain(name)
        yield
        for name in others:
            await self.drain(name, False)

    async def idle(self, within_s: float = IDLE_WITHIN_S) -> None:
        """Nothing is left of any request: router counters 0, every node's pool all free or idle-cached."""
        await eventually(self._leaks, within_s)

    async def up(self, *names: str, within_s: float = START_S) -> None:
        """The router sees these nodes as up."""

        async def missing() -> str:
            nodes = {node.registration.node_id: node for node in (await self.state()).nodes}
            return ", ".join(name for name in names if name not in nodes or not self._is_up(nodes[name]))

        await eventually(missing, within_s)

    def _is_up(self, node: NodeState) -> bool:
        return node.state == "up"

    async def _leaks(self) -> str:
        state = await self.state()
        found = [f"router {name}={count}" for name, count in _router_counts(state).items() if count]
        for node in state.nodes:
            if node.state == "up":
                counts = _node_counts(node)
                found += [f"{node.registration.node_id} {name}={n}" for name, n in counts.items() if n]
        return "; ".join(found)


@dataclass
class Cluster(Deployment):
    """Processes of their own, kept by a launcher."""

    launcher: Launcher
    client: AsyncClient
    _pace: Path
    _killed: set[int] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        return self.launcher.endpoint

    def member(self, name: str) -> Member:
        """By process name: prefill-0, decode-1, router-0."""
        members = [*self.launcher.routers, *self.launcher.nodes]
        return next(member for member in members if member.start.name == name)

    def pid(self, name: str) -> int:
        child = self.member(name).child
        assert child is not None
        return child.pid

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def kill(self, name: str) -> None:
        """SIGKILL. `up` is, from here on, what comes after it."""
        self._killed.add(self.pid(name))
        self.signal(name, signal.SIGKILL)

    def pace(self, step_s: float) -> None:
        """How much longer each engine step takes from here on, on every node."""
        new = self._pace.with_name("new")
        new.write_text(str(step_s))
        new.replace(self._pace)

    @contextmanager
    def slowed(self, step_s: float) -> Iterator[None]:
        """Meanwhile each engine step takes so much longer."""
        self.pace(step_s)
        try:
            yield
        finally:
            self.pace(0.0)

    async def hold(self, name: str) -> None:
        """SIGSTOP, until every thread stands still: the signal alone only asks for it. What the process had
        sent by then may still be under way: `caught_up`."""
        self.signal(name, signal.SIGSTOP)
        pid = self.pid(name)

        async def moving() -> str:
            return f"{name} moves" if _moves(pid) else ""

        await eventually(moving, 30.0)

    def let_go(self, name: str) -> None:
        """SIGCONT."""
        self.signal(name, signal.SIGCONT)

    async def caught_up(self) -> None:
        """The router has dealt with all that had reached it before: it answers in turn."""
        for _ in range(3):
            await self.state()

    def _is_up(self, node: NodeState) -> bool:
        """And is the process that is there now, not one whose death the router has not heard of yet."""
        child, pid = self.member(node.registration.node_id).child, node.registration.pid
        return node.state == "up" and child is not None and child.pid == pid and pid not in self._killed


def _moves(pid: int) -> bool:
    """Whether any thread is in another state than stopped."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has just ended
            continue
        if state != "T":
            return True
    return False


def _router_counts(state: GetClusterResponse) -> dict[str, int]:
    return {
        "queued": state.queued,
        "in_flight": state.in_flight,
        "on nodes": sum(node.in_flight for node in state.nodes),
    }


def _node_counts(node: NodeState) -> dict[str, int]:
    load = node.load
    return {
        "waiting": load.waiting,
        "running": load.running,
        "exporting": load.exporting,
        "reserved": load.reserved,
        "quarantined": load.quarantined,
        "blocks in use": load.blocks_total - load.blocks_free,
    }


async def eventually(check: Callable[[], Any], within_s: float) -> None:
    """Poll until `check` (async, says what is still wrong) says nothing."""
    patience = Patience(within_s)
    while wrong := await check():
        assert patience.lasts(), f"after {within_s} s still: {wrong}"
        await asyncio.sleep(0.02)


def _no_pace(folder: Path) -> Path:
    file = folder / "pace"
    file.write_text("0")
    return file


def _programs(log: Path | None, pace: Path) -> dict[str, Program]:
    script = str(Path(__file__).with_name("child.py"))
    modules = {"router": ROUTER.args[-1], "node": NODE.args[-1]}
    return {name: Program((script, str(log or "-"), str(pace), module)) for name, module in modules.items()}


@asynccontextmanager
async def running(settings: ClusterConfig, log: Path | None = None) -> AsyncIterator[Cluster]:
    """A deployment that is ready; at the end nothing of it is left, which is checked. log: gets what its
    processes write."""
    with tempfile.TemporaryDirectory() as folder:
        pace = _no_pace(Path(folder))
        async with launched(settings, log, pace) as launcher, AsyncClient(launcher.endpoint) as client:
            yield Cluster(launcher, client, pace)


@asynccontextmanager
async def launched(
    settings: ClusterConfig, log: Path | None = None, pace: Path | None = None
) -> AsyncIterator[Launcher]:
    """The same without a client: perhaps nodes alone. pace: see `child.py`; None: as fast as can be."""
    programs = _programs(log, pace or Path(os.devnull))
    launcher = Launcher(settings, progress=lambda text: None, **programs)
    pids: list[int] = []
    try:
        await launcher.start()
        yield launcher
    finally:
        pids = [member.child.pid for member in launcher.supervisor.members if member.child is not None]
        await launcher.stop()
        assert not [pid for pid in pids if psutil.pid_exists(pid)], "processes are left"
