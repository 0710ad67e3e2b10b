"""A node on one event loop: parts, engine thread, services, announcements. Started, drained, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import asdict

import structlog

from baton.core.kvcache import KvEvents
from baton.decode_node.service import DecodeService, Facts
from baton.kv_transfer.handoff_source import HandoffSource, SourceLimits
from baton.kv_transfer.select import host_id
from baton.node.announce import Announcer
from baton.node.build import build
from baton.node.engine_thread import EngineThread
from baton.node.observe import NodeObserver
from baton.node.service import NodeService
from baton.node.shell import Shell
from baton.prefill_node.exporter import Exporter
from baton.prefill_node.link import Identity
from baton.prefill_node.service import PrefillService
from baton.proto.v1 import (
    decode_node_pb2_grpc,
    node_pb2_grpc,
    prefill_node_pb2_grpc,
    registry_pb2,
)
from baton.runtime import codec_node
from baton.runtime.addresses import join_address, reachable
from baton.runtime.bus import Publisher
from baton.runtime.child import NodeStart, Ready
from baton.runtime.grpc_channel import TransportOptions
from baton.runtime.grpc_server import GrpcServer, ServerOptions
from baton.runtime.health import Health, HealthServer
from baton.runtime.metrics import NodeMetrics

log = structlog.get_logger(__name__)

BUS_BEAT_S = 1.0
TRANSFER_IDS = 2**62
ENGINE_STOP_S = 10.0
DRAIN_LINGER_S = 0.5
MAX_REQUESTS_FACTOR = 4


class NodeApp:
    """`await start()`; then `await run()` until told to stop; `await stop()` in every case."""

    def __init__(self, start: NodeStart) -> None:
        self._start = start
        self._health = Health()
        self._stopping = asyncio.Event()
        self.fault: BaseException | None = None
        self._closers: list[Callable[[], object]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Ready:
        """Load, bind, serve, announce. BatonError says what is wrong; call `stop` then too."""
        start = self._start
        self._parts = parts = await asyncio.to_thread(build, start)
        self._closers.append(parts.close)
        name = parts.info.name
        self._metrics = NodeMetrics(name, start.name)
        options = TransportOptions(**start.config.grpc.model_dump()).inner
        observer = NodeObserver(self._metrics)
        shell = self._shell = Shell(start.node_id, parts.incarnation, self._max_requests(), observer)
        self._engine = EngineThread(parts.core, parts.runner, shell.emit)
        self._bus = Publisher(start.node_id, parts.incarnation, start.host, start.advertise_host)
        self._closers.append(self._bus.close)
        self._exporter = self._make_exporter(options)
        self._decode = self._make_decode()
        shell.wire(self._engine, self._exporter, self._decode)
        shell.load = parts.core.load()
        server = ServerOptions(start.host, start.port, transport=options)
        self._server = GrpcServer(server, on_rpc=self._metrics.rpc)
        self._add_services()
        await self._server.start()
        self._announcer = Announcer(start.registries, self.registration, options)
        shell.on_load, shell.on_kv = self._announcer.changed, self._on_kv
        shell.bus_seq = lambda: self._bus.seq
        shell.on_transfer, shell.on_fault = self._announcer.transferred, self._on_fault
        metrics = self._serve_health()
        self._engine.start()
        await self._server.set_serving(True)
        self._announcer.start()
        self._tasks.append(asyncio.create_task(self._beat()))
        self._health.set_ready()
        self._health.watch_loop()
        log.info("node serves", role=start.role.value, address=self.address, model=name)
        return Ready(address=self.address, metrics=metrics)

    @property
    def address(self) -> str:
        """How routers and other nodes reach this one."""
        start = self._start
        return join_address(reachable(start.host, start.advertise_host), self._server.port)

    async def run(self) -> None:
        """Until SIGTERM, SIGINT, or the engine's end; `fault` tells which."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._stopping.set)
        await self._stopping.wait()

    async def drain(self, within_s: float) -> None:
        """Take no new requests and let those at hand finish, for at most so long."""
        await self._drain(True)
        if self._shell.attached:  # what routers sent before they heard of it is still on its way
            await asyncio.sleep(min(DRAIN_LINGER_S, within_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._shell.emptied(), within_s)

    async def stop(self) -> None:
        """End everything in the order that tells peers first. Idempotent."""
        self._health.set_not_ready("stopping")
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "_announcer"):
            await self._announcer.stop()
        if hasattr(self, "_shell"):
            self._shell.close(f"node {self._start.node_id} is stopping")
        if hasattr(self, "_exporter"):
            await self._exporter.close()
        if hasattr(self, "_server"):
            await self._server.stop(0.2)
        if hasattr(self, "_engine"):
            await asyncio.to_thread(self._engine.stop, ENGINE_STOP_S)
        if hasattr(self, "_decode"):
            self._decode.close()
        while self._closers:
            self._closers.pop()()
        await self._health.stop()

    def registration(self) -> registry_pb2.Registration:
        parts, start = self._parts, self._start
        return codec_node.registration_to_proto(
            codec_node.Registration(
                node_id=start.node_id,
                incarnation=parts.incarnation,
                address=self.address,
                bus_endpoint=self._bus.endpoint,
                host_id=host_id(),
                pid=os.getpid(),
                model=parts.info,
                layout=codec_node.LayoutFacts(**asdict(parts.layout)),
                kv_bytes_per_token=parts.loaded.kv_token_bytes,
                load=self._shell.load or parts.core.load(),
            )
        )

    async def _drain(self, draining: bool) -> None:
        """Take no new requests, and say so everywhere; or take them again."""
        self._shell.set_draining(draining)
        await self._server.set_serving(not draining)
        if draining:
            self._health.set_not_ready("draining")
        else:
            self._health.set_ready()

    # ---- parts -------------------------------------------------------------------------------------------

    def _max_requests(self) -> int:
        settings = self._parts.settings
        return settings.max_waiting + MAX_REQUESTS_FACTOR * settings.max_running

    def _make_exporter(self, options: TransportOptions) -> Exporter:
        parts, start = self._parts, self._start
        source = HandoffSource(
            parts.layout.block_size,
            SourceLimits(reserve_timeout_s=start.config.transfer.timeout_s),
            first_id=secrets.randbelow(TRANSFER_IDS),
        )
        identity = Identity(
            start.node_id,
            parts.incarnation,
            host_id(),
            os.getpid(),
            parts.info.fingerprint,
            parts.layout,
            start.config.transfer.lease_s,
        )
        return Exporter(source, identity, parts.transports, self._shell, options)

    def _make_decode(self) -> DecodeService:
        parts, start = self._parts, self._start
        facts = Facts(
            start.node_id,
            parts.incarnation,
            host_id(),
            parts.info,
            parts.layout,
            start.config.transfer.lease_s,
        )
        return DecodeService(facts, self._shell, parts.transports, lambda reason: None)

    def _add_services(self) -> None:
        server, parts = self._server, self._parts
        server.add(
            "baton.v1.Node",
            node_pb2_grpc.add_NodeServicer_to_server,
            NodeService(self._shell, self.registration, self._drain),
        )
        server.add(
            "baton.v1.PrefillNode",
            prefill_node_pb2_grpc.add_PrefillNodeServicer_to_server,
            PrefillService(parts.info, self._shell),
        )
        server.add("baton.v1.DecodeNode", decode_node_pb2_grpc.add_DecodeNodeServicer_to_server, self._decode)

    def _serve_health(self) -> str:
        """Address of /metrics and /health, "" if they are off."""
        settings = self._start.config.metrics
        self._health.add_check(lambda: "" if self._engine.alive else "the engine has stopped")
        if not settings.enabled:
            return ""
        server = HealthServer(self._health, self._metrics.registry, settings.host, self._start.metrics_port)
        self._closers.append(server.close)
        return server.address

    # ---- what the engine says ----------------------------------------------------------------------------

    def _on_kv(self, events: KvEvents) -> None:
        self._bus.publish(events.stored, events.removed)

    def _on_fault(self, error: BaseException) -> None:
        self.fault = error
        self._health.set_not_ready("the engine has stopped")
        self._stopping.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BUS_BEAT_S)
            self._bus.beat()
