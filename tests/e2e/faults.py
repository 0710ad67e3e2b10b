"""What fault tests share: what a client got, what processes hold on to, what logs complain of."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from baton.core.errors import BatonError, Cancelled
from baton.kv_transfer.segment import DIRECTORY
from baton.proto.v1.admin_pb2 import DrainNodeRequest, SetNodeRoleRequest
from baton.proto.v1.admin_pb2_grpc import AdminStub
from baton.runtime.client.convert import Collector
from baton.runtime.client.types import Completion
from baton.runtime.grpc_channel import channel
from tests.e2e.cluster import START_S, Cluster, Deployment, eventually
from tests.e2e.exact import Case
from tests.relay import Relay

PATIENCE_S = 30.0
"""For what takes a moment on an idle machine: this one may be busy."""

TRIES = 10
"""For what only a busy machine can spoil."""

REPORTS_APART_S = 0.5
"""Nodes that have nothing new report less often than this."""

RELAYED_HOST = "127.0.0.2"
"""Another name of this host: nodes that advertise it can be given a relay between them and everybody else."""

FDS_MORE, THREADS_MORE, RSS_MORE_BYTES = 8, 6, 48 << 20


async def until(true: Callable[[], Any], within_s: float = PATIENCE_S, what: str = "condition") -> None:
    """Poll until `true` (async) says so."""

    async def wrong() -> str:
        return "" if await true() else f"not {what}"

    await eventually(wrong, within_s)


async def met(true: Callable[[], Awaitable[Any]], *answers: Streaming | asyncio.Future[Any]) -> bool:
    """Wait until `true` says so; False where an answer is over: then the machine has let the moment pass, and
    it will not come again. The product did nothing wrong, so try again, TRIES times at most."""

    def over() -> bool:
        return any(one.over if isinstance(one, Streaming) else one.done() for one in answers)

    async def either() -> bool:
        return over() or bool(await true())

    await until(either, what="met")
    return not over()


async def ending(answer: Awaitable[Completion]) -> Completion | BatonError:
    """What came of a call, whichever of the two."""
    try:
        return await answer
    except BatonError as error:
        return error


class Streaming:
    """A case being answered, to be broken into after a few tokens: `await some(7)`, `await exact()`."""

    def __init__(self, cluster: Deployment, case: Case, **options: Any) -> None:
        self._case = case
        self._collector = Collector()
        self._tokens = 0
        self._more = asyncio.Event()
        length = len(case.want.token_ids)
        self.stream = cluster.client.stream(
            case.prompt, max_tokens=length, temperature=0.0, ignore_eos=True, **options
        )
        self._task = asyncio.ensure_future(ending(self._read()))

    async def some(self, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self._tokens < tokens and not self._task.done():
                await self._more.wait()
                self._more.clear()
        assert self._tokens < len(self._case.want.token_ids), "it is complete already"

    @property
    def tokens(self) -> int:
        """So many have come."""
        return self._tokens

    @property
    def over(self) -> bool:
        return self._task.done()

    def at_end(self, tell: Callable[[Streaming], Any]) -> None:
        """When it is over, one way or the other."""
        self._task.add_done_callback(lambda _: tell(self))

    async def end(self) -> Completion | BatonError:
        return await asyncio.wait_for(self._task, 2 * PATIENCE_S)

    async def exact(self) -> Completion:
        """It must have been answered, as the reference would: no gap, no repeat."""
        answer = await self.end()
        assert isinstance(answer, Completion), answer
        assert list(answer.token_ids) == self._case.want.token_ids
        assert answer.usage.completion_tokens == len(answer.token_ids)
        return answer

    async def cancelled(self) -> None:
        """Twice, which changes nothing; the client is told."""
        self.stream.cancel()
        self.stream.cancel()
        ended = await self.end()
        assert isinstance(ended, Cancelled), ended

    async def _read(self) -> Completion:
        try:
            async for delta in self.stream:
                self._collector.add(delta)
                self._tokens += len(delta.token_ids)
                self._more.set()
            return self._collector.completion()
        finally:
            self._more.set()


async def load_is(cluster: Deployment, node: str, **counts: int) -> None:
    """Wait until the node reports at least so many running, waiting, reserved, ..."""

    async def short() -> str:
        load = (await cluster.node(node)).load
        missing = {name: getattr(load, name) for name, n in counts.items() if getattr(load, name) < n}
        return f"{node} has {missing}, not {counts}" if missing else ""

    await eventually(short, PATIENCE_S)


async def reported(cluster: Deployment, *nodes: str) -> None:
    """Wait until each has reported twice more: the second time, of what was so after this began."""
    counts, last_s = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, time.monotonic())

    async def old() -> str:
        for name in nodes:
            age_s = (await cluster.node(name)).report_age_s
            at_s = time.monotonic() - age_s  # or a little earlier: it took a moment to hear of it
            if at_s > last_s[name] + REPORTS_APART_S:
                counts[name], last_s[name] = counts[name] + 1, at_s
        return f"reports: {counts}" if min(counts.values()) < 2 else ""

    await eventually(old, PATIENCE_S)


async def state_is(cluster: Deployment, node: str, *states: str, within_s: float = PATIENCE_S) -> None:
    async def other() -> str:
        found = (await cluster.node(node)).state
        return "" if found in states else f"{node} is {found}"

    await eventually(other, within_s)


async def lost(cluster: Cluster, node: str, pid: int) -> None:
    """Wait until the router has lost the process that had this pid there. Where it is back already, that was
    long ago."""

    async def there() -> str:
        found = await cluster.node(node)
        return f"{node} is {found.state}" if found.registration.pid == pid and found.state != "lost" else ""

    await eventually(there, PATIENCE_S)


async def another(cluster: Cluster, name: str, pid: int) -> None:
    """Wait until the process that had this pid runs anew."""

    async def running() -> bool:
        child = cluster.member(name).child
        return child is not None and child.pid != pid and child.exit_code is None

    await until(running, START_S, what=f"{name} started again")


async def set_role(cluster: Deployment, node: str, role: int) -> None:
    """Have the node take a role, and wait until it says that it has."""
    async with channel(cluster.endpoint) as connection:
        await AdminStub(connection).SetNodeRole(
            SetNodeRoleRequest(node_id=node, role=role), timeout=PATIENCE_S
        )

    async def taken() -> bool:
        return bool((await cluster.node(node)).load.role == role)

    await until(taken, what=f"{node} in role {role}")


async def drain(cluster: Deployment, node: str, draining: bool = True) -> None:
    async with channel(cluster.endpoint) as connection:
        await AdminStub(connection).DrainNode(
            DrainNodeRequest(node_id=node, draining=draining), timeout=PATIENCE_S
        )


@asynccontextmanager
async def drained(cluster: Deployment, node: str) -> AsyncIterator[None]:
    """Meanwhile the node gets nothing new."""
    await drain(cluster, node)
    try:
        await state_is(cluster, node, "draining")
        yield
    finally:
        await drain(cluster, node, draining=False)
        await state_is(cluster, node, "up")


# ---- what processes hold on to ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Holdings:
    """One process at one moment."""

    pid: int
    fds: int
    threads: int
    rss_bytes: int

    @classmethod
    def of(cls, pid: int) -> Holdings:
        process = psutil.Process(pid)
        return cls(pid, process.num_fds(), process.num_threads(), process.memory_info().rss)

    def above(self, before: Holdings) -> str:
        """What is clearly more than before, "" if nothing. Pools of threads and memory may settle first."""
        found = []
        if self.pid != before.pid:
            found.append(f"pid {before.pid} is now {self.pid}")
        if self.fds > before.fds + FDS_MORE:
            found.append(f"{self.fds} descriptors, before {before.fds}")
        if self.threads > before.threads + THREADS_MORE:
            found.append(f"{self.threads} threads, before {before.threads}")
        if self.rss_bytes > before.rss_bytes + RSS_MORE_BYTES:
            found.append(f"{self.rss_bytes >> 20} MiB, before {before.rss_bytes >> 20}")
        return ", ".join(found)


def holdings(cluster: Cluster) -> dict[str, Holdings]:
    """Of every process, by name."""
    members = [*cluster.launcher.routers, *cluster.launcher.nodes]
    return {m.start.name: Holdings.of(m.child.pid) for m in members if m.child is not None}


async def back_to(cluster: Cluster, before: dict[str, Holdings], within_s: float = PATIENCE_S) -> None:
    """Wait until every process holds about what it held before."""

    async def more() -> str:
        now = holdings(cluster)
        found = {name: now[name].above(was) for name, was in before.items()}
        return "; ".join(f"{name}: {what}" for name, what in found.items() if what)

    await eventually(more, within_s)


def segments_of(pids: Iterable[int]) -> set[str]:
    """Names of the shared memory segments that these processes have mapped."""
    found = set()
    for pid in pids:
        for mapping in psutil.Process(pid).memory_maps():
            if mapping.path.startswith(f"{DIRECTORY}/baton-"):
                found.add(Path(mapping.path).name)
    return found


# ---- what logs complain of --------------------------------------------------------------------------------

_TROUBLE = re.compile(r"\[(error|critical) *\]|Traceback|never (retrieved|awaited)|Exception ignored|Error:")


def trouble(log: Path, *, expected: str = "(?!)") -> list[str]:
    """Lines of a log that tell of an error, but for those in which the pattern `expected` is found."""
    lines = log.read_text().splitlines()
    return [line for line in lines if _TROUBLE.search(line) and not re.search(expected, line)]


# ---- relays -----------------------------------------------------------------------------------------------


@dataclass
class Relays:
    """Between a node and everybody else. grpc: its services; rest: its other ports, KV by TCP among them."""

    grpc: Relay
    rest: list[Relay]


@asynccontextmanager
async def grpc_relay(port: int) -> AsyncIterator[Relay]:
    """For the gRPC port of a node with `port` and `advertise_host: RELAYED_HOST`; before the node starts."""
    async with Relay(f"127.0.0.1:{port}", f"{RELAYED_HOST}:{port}") as relay:
        yield relay


@asynccontextmanager
async def relays(cluster: Cluster, name: str, grpc: Relay) -> AsyncIterator[Relays]:
    """For all other ports that the node listens on now."""
    connections = psutil.Process(cluster.pid(name)).net_connections("tcp")
    ports = {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    ports.discard(int(grpc.address.rpartition(":")[2]))
    async with AsyncExitStack() as stack:
        rest = [
            await stack.enter_async_context(Relay(f"127.0.0.1:{port}", f"{RELAYED_HOST}:{port}"))
            for port in sorted(ports)
        ]
        yield Relays(grpc, rest)


async def together(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work))


# ---- health ------------------------------------------------------------------------------------------------


def probe(address: str, path: str) -> str:
    """What the process answers to a health probe; "" if all is well."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            text: str = answer.read().decode().strip()
            return "" if text == "ok" else text
    except OSError as error:
        return str(error)


@asynccontextmanager
async def healthy(cluster: Cluster, *names: str) -> AsyncIterator[None]:
    """Meanwhile these processes say at all times that they live and are ready."""
    addresses = [ready.metrics for name in names if (ready := cluster.member(name).ready) is not None]
    assert all(addresses)
    complaints: list[str] = []

    async def watch() -> None:
        while not complaints:
            for address in addresses:
                for path in ("/health/live", "/health/ready"):
                    complaints.extend(filter(None, [await asyncio.to_thread(probe, address, path)]))
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert complaints == []
