"""Composes a deployment's processes: routers first, since nodes must know where to announce themselves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable

import grpc

from baton.core.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument
from baton.core.load import Role
from baton.proto.v1.admin_pb2 import GetClusterRequest
from baton.proto.v1.admin_pb2_grpc import AdminStub
from baton.runtime.child import NodeStart, RouterStart
from baton.runtime.config import ClusterConfig
from baton.runtime.cpus import usable_cpus
from baton.runtime.grpc_server import channel
from baton.runtime.ports import SharedPort
from baton.runtime.process import Program
from baton.runtime.supervisor import Member, Supervisor

ROUTER = Program(("-m", "baton.cli.router"))
NODE = Program(("-m", "baton.cli.node"))
JOIN_TIMEOUT_S = 30.0
POLL_S = 0.05
ASK_TIMEOUT_S = 0.5

Progress = Callable[[str], None]


class Launcher:
    """`start`, then `run` until a process is given up, then `stop` in every case."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        router: Program = ROUTER,
        node: Program = NODE,
        progress: Progress = print,
    ) -> None:
        self._config = config.resolved()
        self._router = router
        self._node = node
        self._progress = progress
        self._ports: list[SharedPort] = []
        self.supervisor = Supervisor(self._config.supervise)
        self.routers: list[Member] = []
        self.nodes: list[Member] = []

    @property
    def endpoint(self) -> str:
        """host:port for clients on this host; "" where no router runs here."""
        return self.routers[0].ready.address if self.routers and self.routers[0].ready else ""

    @property
    def http_endpoint(self) -> str:
        """Likewise for HTTP; "" where it is switched off."""
        return self.routers[0].ready.http if self.routers and self.routers[0].ready else ""

    async def start(self) -> None:
        """Return when all processes are ready and every router sees every node; BatonError says why not."""
        for role in Role:
            check_devices(self._config, role)
        if self._config.router.processes:
            self._progress("starting the router")
        await self._start_routers()
        count = self._config.node_count
        if count:
            self._progress(f"starting {count} node{'s'[: count != 1]} with model {self._config.model}")
        await self._start_nodes()
        if self.routers and self.nodes:
            self._progress("waiting for the router to see all nodes")
            await self._all_seen()

    async def run(self) -> None:
        """Until a process cannot be kept running (Unavailable says which)."""
        await self.supervisor.run()

    async def stop(self) -> None:
        """Nothing is left running afterwards. Idempotent."""
        await self.supervisor.stop()
        for port in self._ports:
            port.close()

    async def unfinished(self) -> int:
        """Requests that the routers have, as far as these answer at once."""
        ready = [member.ready for member in self.routers if member.ready is not None]
        return sum(await asyncio.gather(*(_unfinished(router.registry) for router in ready)))

    async def _start_routers(self) -> None:
        settings = self._config.router
        shared = settings.processes > 1
        port, http_port = settings.port, settings.http.port
        if shared:
            port = self._held(settings.host, port, "router.port")
            if settings.http.enabled:
                http_host = settings.http.host or settings.host
                http_port = self._held(http_host, http_port, "router.http.port")
        starts = [
            RouterStart(
                index=index,
                config=self._config,
                port=port,
                http_port=http_port,
                share_port=shared,
                registry_port=counted(settings.registry_port, index),
                metrics_port=counted(settings.metrics_port, index),
            )
            for index in range(settings.processes)
        ]
        self.routers = await _together(self.supervisor.start(self._router, start) for start in starts)

    def _held(self, host: str, port: int, field: str) -> int:
        """The port, taken for the routers to share."""
        self._ports.append(SharedPort(host, port, field))
        return self._ports[-1].port

    async def _start_nodes(self) -> None:
        registries = (
            *(member.ready.registry for member in self.routers if member.ready is not None),
            *self._config.registries,
        )
        starts = [
            node_start(self._config, role, index, registries)
            for role in Role
            for index in range(self._config.nodes(role).size)
        ]
        self.nodes = await _together(self.supervisor.start(self._node, start) for start in starts)

    async def _all_seen(self) -> None:
        """Each router is asked at its registry's address: on a shared client port any would answer."""
        wanted = {member.start.node_id for member in self.nodes if isinstance(member.start, NodeStart)}
        addresses = [member.ready.registry for member in self.routers if member.ready is not None]
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await asyncio.gather(*(_sees(address, wanted) for address in addresses))
        except TimeoutError:
            raise DeadlineExceeded(
                f"the router did not see all of {', '.join(sorted(wanted))} within {JOIN_TIMEOUT_S:g} s"
            ) from None


async def _together(starts: Iterable[Coroutine[None, None, Member]]) -> list[Member]:
    """All of them, side by side; the first failure ends the others."""
    tasks = [asyncio.create_task(start) for start in starts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unfinished(address: str) -> int:
    async with channel(address) as connection:
        try:
            state = await AdminStub(connection).GetCluster(GetClusterRequest(), timeout=ASK_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return 0
        return state.in_flight + state.queued


async def _sees(address: str, wanted: set[str]) -> None:
    """Return when the router lists all the nodes as up; FailedPrecondition if two do not fit together."""
    async with channel(address) as connection:
        admin = AdminStub(connection)
        while True:
            try:
                cluster = await admin.GetCluster(GetClusterRequest(), timeout=5)
            except grpc.aio.AioRpcError as error:
                raise FailedPrecondition(
                    f"the router at {address} does not answer: {error.details()}"
                ) from None
            ours = [node for node in cluster.nodes if node.registration.node_id in wanted]
            for node in ours:
                if node.incompatible:
                    other = node.incompatible[0]
                    raise FailedPrecondition(
                        f"nodes {node.registration.node_id} and {other.node_id} cannot work together: "
                        + ", ".join(other.items)
                    )
            if len([node for node in ours if node.state == "up"]) == len(wanted):
                return
            await asyncio.sleep(POLL_S)


def node_start(config: ClusterConfig, role: Role, index: int, registries: tuple[str, ...]) -> NodeStart:
    """The message for one node. config: resolved."""
    nodes = config.nodes(role)
    return NodeStart(
        role=role,
        index=index,
        node_id=node_id(config, role, index),
        config=config,
        registries=registries,
        threads=threads_of(config, role),
        cpus=cpus_of(config, role, index),
        device=nodes.devices[index % len(nodes.devices)],
        host=nodes.host,
        port=counted(nodes.port, index),
        advertise_host=nodes.advertise_host,
        metrics_port=counted(nodes.metrics_port, index),
    )


def threads_of(config: ClusterConfig, role: Role) -> int:
    """Compute threads of each node of this role."""
    return config.nodes(role).engine.threads or max(1, usable_cpus() // config.node_count)


def cpus_of(config: ClusterConfig, role: Role, index: int) -> tuple[int, ...]:
    """Cores that are the node's own; () where pinning is off, the nodes need more than there are, or this one
    was not counted.

    Nodes that compute prompts keep theirs even where the others get none: their steps are long, and threads
    that began on one core may stay there together while another idles. Those of decode, whose steps are
    short, find it.
    """
    nodes = config.nodes(role)
    if not nodes.engine.pin or index >= nodes.size:
        return ()
    for pinned in (list(Role), [each for each in Role if each.prefills]):
        threads = [threads_of(config, each) for each in pinned for _ in range(config.nodes(each).size)]
        if role in pinned and sum(threads) <= usable_cpus():
            place = sum(config.nodes(each).size for each in pinned[: pinned.index(role)]) + index
            first = sum(threads[:place])
            return tuple(sorted(os.sched_getaffinity(0)))[first : first + threads[place]]
    return ()


def node_id(config: ClusterConfig, role: Role, index: int) -> str:
    """`prefill-0`; with routers elsewhere other hosts have one too, so host and launcher go before it."""
    name = f"{role.value}-{index}"
    return f"{socket.gethostname()}-{os.getpid()}-{name}" if config.registries else name


def check_devices(config: ClusterConfig, role: Role) -> None:
    """InvalidArgument for a device, or a number of them per node, that the engine cannot use."""
    nodes = config.nodes(role)
    if nodes.tensor_parallel != 1:
        raise InvalidArgument(
            f"{nodes.tensor_parallel} is not supported yet, only 1: a node runs on one device",
            field=f"{role.value}.tensor_parallel",
        )
    for device in nodes.devices:
        if device != "cpu":
            raise InvalidArgument(f"{device!r} is not supported yet, only cpu", field=f"{role.value}.devices")


def counted(first: int, index: int) -> int:
    """Ports count up from the first; 0 stays 0."""
    return first + index if first else 0
