"""A whole router, built from plain settings: its servers on one event loop, started, drained, stopped.

Clients come in by the client port (Inference, Admin) and the HTTP port, nodes by the registry port, which
each router process has for itself; so several processes can share the clients' ports.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

import structlog

from baton.core.errors import Unavailable
from baton.core.model import Fingerprint
from baton.proto.v1 import admin_pb2_grpc, inference_pb2_grpc, registry_pb2_grpc
from baton.router.admin import AdminService
from baton.router.calls import CallOptions, Calls, Tokenizer
from baton.router.driver import Driver
from baton.router.http.app import http_app
from baton.router.http.server import HttpOptions, HttpServer
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig
from baton.router.membership import Membership
from baton.router.observe import Observer
from baton.router.prepare import Limits
from baton.router.registry import RegistryService
from baton.router.service import InferenceService
from baton.runtime.grpc_channel import TransportOptions
from baton.runtime.grpc_server import GrpcServer, ServerOptions
from baton.runtime.metrics import RouterMetrics

log = structlog.get_logger(__name__)

STOP_GRACE_S = 0.5
POLL_S = 0.02
GAUGES_S = 0.5  # metrics may be so old: each time all nodes are looked at


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Ports 0: the kernel chooses. model: the name that clients use. expected: fingerprint that nodes must
    have, None: that of the first. event_log: file for every event of the machine, "" for none. processes: how
    many routers share the clients' ports. http: None: no HTTP. joining_s: see CallOptions."""

    model: str
    host: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    processes: int = 1
    http: HttpOptions | None = None
    registry_host: str = "127.0.0.1"
    registry_port: int = 0
    transport: TransportOptions = field(default_factory=TransportOptions)
    machine: RouterConfig = field(default_factory=RouterConfig)
    default_timeout_s: float | None = None
    joining_s: float = 0.0
    tokenizer_digest: str = ""
    expected: Fingerprint | None = None
    event_log: str = ""
    config_json: str = "{}"
    process: str = "router"


class RouterApp:
    """`await start()`, then `address`, `http_address` and `registry_address`; `await stop(drain_s)`."""

    def __init__(self, settings: RouterSettings, tokenizer: Tokenizer) -> None:
        self.router_id = f"{settings.process}-{uuid.uuid4().hex[:12]}"
        self.settings = settings
        self.metrics = RouterMetrics(settings.model, settings.process)
        self.machine = RouterMachine(settings.machine)
        self.driver = Driver(self.machine)
        self.membership = Membership(
            self.driver,
            self.router_id,
            settings.transport.inner,
            tokenizer=settings.tokenizer_digest,
            expected=settings.expected,
        )
        self._observer = Observer(self.metrics, self.driver, settings.event_log)
        self.calls = Calls(
            CallOptions(
                settings.model,
                Limits(settings.transport.max_message_bytes),
                settings.default_timeout_s,
                settings.joining_s,
            ),
            tokenizer,
            self.membership,
            self.driver,
            self._observer,
        )
        self._clients = self._client_server()
        self._http = self._http_server()
        self._nodes = self._node_server()
        self._draining = False
        self._ready = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return self._clients.address

    @property
    def http_address(self) -> str:
        """ "" where there is no HTTP."""
        return self._http.address if self._http else ""

    @property
    def registry_address(self) -> str:
        return self._nodes.address

    @property
    def ready(self) -> bool:
        """Whether a request that came now could run."""
        return not self.trouble()

    def trouble(self) -> str:
        """Why none could, "" if one could."""
        if self._draining:
            return "draining"
        return "" if self.machine.ready() else "no nodes that could serve a request"

    async def start(self) -> None:
        """Bind all ports and serve. BindError names the one that cannot be bound; nothing is left then."""
        try:
            await self._nodes.start()
            await self._clients.start()
            if self._http is not None:
                await self._http.start()
        except Exception:
            await self._stop_servers()
            raise
        self.driver.on_step = self._ready.set
        loop = asyncio.get_running_loop()
        self._watches = [loop.create_task(watch) for watch in (self._watch_ready(), self._watch_cluster())]
        log.info(
            "router serves", clients=self.address, http=self.http_address, registry=self.registry_address
        )

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take nothing new, wait up to `drain_s` for what runs, end the rest with UNAVAILABLE, go."""
        self._draining = self.calls.draining = True
        self.calls.nodes_joined.set()  # what waits for nodes hears of it
        await self._clients.set_serving(False)
        try:
            async with asyncio.timeout(drain_s):
                await self.driver.idle.wait()
        except TimeoutError:
            self.driver.abandon_all(Unavailable("the router stops", retry_after_s=1.0))
            await asyncio.sleep(POLL_S)  # let the aborts reach the nodes, and the statuses the clients
        for watch in self._watches:
            watch.cancel()
        await self._stop_servers()

    async def _stop_servers(self) -> None:
        clients = [self._clients.stop(STOP_GRACE_S)]
        if self._http is not None:
            clients.append(self._http.stop())
        await asyncio.gather(*clients)
        await self.membership.close()
        await self._nodes.stop()
        self.driver.close()
        self.calls.close()
        self._observer.close()

    async def _watch_ready(self) -> None:
        """Health is true at all times: serving while some pair of nodes is there."""
        while True:
            await self._clients.set_serving(self.ready)
            if self.ready:
                self.calls.nodes_joined.set()
            await asyncio.sleep(POLL_S)
            await self._ready.wait()
            self._ready.clear()

    async def _watch_cluster(self) -> None:
        """Metrics of all nodes together."""
        while True:
            self._observer.show_cluster()
            await asyncio.sleep(GAUGES_S)

    def _client_server(self) -> GrpcServer:
        settings = self.settings
        options = ServerOptions(settings.host, settings.port, settings.reuse_port, settings.transport)
        server = GrpcServer(options, on_rpc=self.metrics.rpc)
        inference = InferenceService(self.calls)
        server.add("baton.v1.Inference", inference_pb2_grpc.add_InferenceServicer_to_server, inference)
        admin = AdminService(self.driver, self.membership, settings.config_json, sharing=settings.processes)
        server.add("baton.v1.Admin", admin_pb2_grpc.add_AdminServicer_to_server, admin)
        return server

    def _http_server(self) -> HttpServer | None:
        options = self.settings.http
        if options is None:
            return None
        metrics = self.metrics
        app = http_app(self.calls, self.trouble, metrics.registry, options.keys, metrics.http_request)
        return HttpServer(app, options)

    def _node_server(self) -> GrpcServer:
        settings = self.settings
        transport = settings.transport.inner
        options = ServerOptions(settings.registry_host, settings.registry_port, False, transport)
        server = GrpcServer(options, on_rpc=self.metrics.rpc)
        lease_s = settings.machine.lease_s
        service = RegistryService(self.membership, lease_s, lease_s * settings.machine.lost_leases)
        server.add("baton.v1.Registry", registry_pb2_grpc.add_RegistryServicer_to_server, service)
        # Here too: on a client port that several routers share, nobody can tell which of them answers.
        admin = AdminService(self.driver, self.membership, settings.config_json)
        server.add("baton.v1.Admin", admin_pb2_grpc.add_AdminServicer_to_server, admin)
        return server
