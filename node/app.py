"""A node on one event loop: parts, engine thread, services, announcements. Started, drained, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from contextlib import AsyncExitStack
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
from baton.prefill_node.fetcher import Fetcher
from baton.prefill_node.link import Identity
from baton.prefill_node.service import PrefillService
from baton.proto.v1 import (
    decode_node_pb2_grpc,
    node_pb2_grpc,
    prefill_node_pb2_grpc,
    registry_pb2,
)
from baton.runtime import codec_node, tasks
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
SERVER_STOP_S = 0.2
DRAIN_LINGER_S = 0.5
MAX_REQUESTS_FACTOR = 4


class NodeApp:
    """`await start()`; then `await run()` until told to stop; `await stop()` in every case."""

    def __init__(self, start: NodeStart) -> None:
        self._start = start
        self._health = Health()
        self._stopping = asyncio.Event()
        self._stack = AsyncExitStack()  # what `stop` undoes, last first
        self.fault: BaseException | None = None

    async def start(self) -> Ready:
        """Load, bind, serve, announce. BatonError says what is wrong; call `stop` then too."""
        start, stack = self._start, self._stack
        stack.push_async_callback(self._health.stop)
        self._parts = parts = await asyncio.to_thread(build, start)
        stack.callback(parts.close)
        self._metrics = NodeMetrics(parts.info.name, start.name)
        options = TransportOptions(**start.config.grpc.model_dump()).inner
        observer = NodeObserver(self._metrics)
        shell = self._shell = Shell(start.node_id, parts.incarnation, self._max_requests(), observer)
        self._engine = EngineThread(
            parts.core, parts.runner, shell.emit, start.cpus[0] if start.cpus else None
        )
        self._bus = Publisher(start.node_id, parts.incarnation, start.host, start.advertise_host)
        stack.callback(self._bus.close)
        self._decode = self._make_decode()
        stack.callback(self._decode.close)
        stack.push_async_callback(asyncio.to_thread, self._engine.stop, ENGINE_STOP_S)
        exporter = self._make_exporter(options)
        fetcher = Fetcher(self._identity(), lambda: self.address, shell.fetch_failed, options)
        shell.wire(self._engine, exporter, self._decode, fetcher)
        await self._serve(options)
        stack.push_async_callback(fetcher.close)
        stack.push_async_callback(exporter.close)
        stack.callback(shell.close, f"node {start.node_id} is stopping")
        announcer = Announcer(start.registries, self.registration, options, self._on_fault)
        stack.push_async_callback(announcer.stop)
        self._connect(announcer)
        metrics = self._serve_health()
        self._engine.start()
        await self._server.set_serving(True)
        announcer.start()
        stack.push_async_callback(tasks.cancel, tasks.spawn(self._beat(), self._on_fault, "beat"))
        self._health.set_ready()
        self._health.watch_loop()
        log.info(
            "node serves",
            role=start.role.value,
            address=self.address,
            model=parts.info.name,
            kernels=parts.loaded.backend,
            quantization=parts.settings.quantization,
            threads=start.threads,
        )
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if self._shell.attached:  # what routers sent before they heard of it is still on its way
                    await asyncio.sleep(DRAIN_LINGER_S)
                await self._shell.emptied()

    async def stop(self) -> None:
        """End everything, in the order that tells peers first. Idempotent."""
        self._health.set_not_ready("stopping")
        await self._stack.aclose()

    @property
    def engine_hangs(self) -> bool:
        """After `stop`: the engine did not end its last step. The process must be ended without it."""
        return hasattr(self, "_engine") and self._engine.running

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
                step_tokens=parts.core.prefill.step_tokens,
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
        parts = self._parts
        source = HandoffSource(
            parts.layout.block_size,
            SourceLimits(reserve_timeout_s=self._start.config.transfer.timeout_s),
            first_id=secrets.randbelow(TRANSFER_IDS),
        )
        return Exporter(source, self._identity(), parts.transports, self._shell, options)

    def _identity(self) -> Identity:
        parts, start = self._parts, self._start
        return Identity(
            start.node_id,
            parts.incarnation,
            host_id(),
            os.getpid(),
            parts.info.fingerprint,
            parts.layout,
            start.config.transfer.lease_s,
        )

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
        return DecodeService(facts, self._shell, parts.transports, self._metrics.stale)

    async def _serve(self, options: TransportOptions) -> None:
        """Bind the port and add the services; nothing is taken before `set_serving`."""
        start, parts = self._start, self._parts
        settings = ServerOptions(start.host, start.port, transport=options)
        server = self._server = GrpcServer(settings, on_rpc=self._metrics.rpc)
        server.add(
            "baton.v1.Node",
            node_pb2_grpc.add_NodeServicer_to_server,
            NodeService(self._shell, self.registration, self._drain),
        )
        server.add(
            "baton.v1.PrefillNode",
            prefill_node_pb2_grpc.add_PrefillNodeServicer_to_server,
            PrefillService(parts.info, parts.layout, self._shell, fetch=start.config.transfer.fetch),
        )
        server.add("baton.v1.DecodeNode", decode_node_pb2_grpc.add_DecodeNodeServicer_to_server, self._decode)
        self._stack.push_async_callback(server.stop, SERVER_STOP_S)
        await server.start()

    def _connect(self, announcer: Announcer) -> None:
        """Where the shell sends what the engine says."""
        shell = self._shell
        shell.load = self._parts.core.load()
        shell.on_load, shell.on_transfer = announcer.changed, announcer.transferred
        shell.on_kv, shell.on_fault = self._on_kv, self._on_fault
        shell.bus_seq = lambda: self._bus.seq

    def _serve_health(self) -> str:
        """Address of /metrics and /health, "" if they are off."""
        settings = self._start.config.metrics
        self._health.add_check(lambda: "" if self._engine.alive else "the engine has stopped")
        if not settings.enabled:
            return ""
        server = HealthServer(self._health, self._metrics.registry, settings.host, self._start.metrics_port)
        self._stack.callback(server.close)
        return server.address

    # ---- what the engine says ----------------------------------------------------------------------------

    def _on_kv(self, events: KvEvents) -> None:
        self._bus.publish(events.stored, events.removed)

    def _on_fault(self, error: BaseException) -> None:
        """A node that cannot do its work ends; its launcher starts another."""
        log.error("the node cannot go on", reason=repr(error))
        self.fault = self.fault or error
        self._health.set_not_ready(f"failed: {error!r}")
        self._stopping.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BUS_BEAT_S)
            self._bus.beat()
            stall_s = self._parts.settings.stall_s
            if self._engine.busy_s() > stall_s:
                raise TimeoutError(f"the engine has been in one step for more than {stall_s:g} s")
