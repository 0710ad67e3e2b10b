"""Tells every router that this node exists and how it is doing, for as long as it lives.

One bidirectional Announce stream per router: the registration first, then load reports when something
changed, at most every MIN_INTERVAL_S, and at least every third of the lease. A broken stream is opened anew
with the same incarnation: to the router that is the same node, back again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import structlog

from baton.core.load import LoadReport
from baton.proto.v1 import registry_pb2 as pb
from baton.proto.v1.registry_pb2_grpc import RegistryStub
from baton.runtime import codec_node, tasks
from baton.runtime.grpc_channel import TransportOptions, channel

log = structlog.get_logger(__name__)

MIN_INTERVAL_S = 0.02
RETRY_S = 0.25
KEEP_SAMPLES = 64
KEEP_ARRIVED = 4096  # more at once are counted a little later


class Announcer:
    """registration: makes the message anew, with the current load. on_fault: an error of our own ended it."""

    def __init__(
        self,
        registries: Sequence[str],
        registration: Callable[[], pb.Registration],
        options: TransportOptions,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._routers = [_Router(address, registration, options) for address in registries]
        self._on_fault = on_fault
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [tasks.spawn(router.keep(), self._on_fault, "announce") for router in self._routers]

    def changed(self, load: LoadReport) -> None:
        """There is a newer load report."""
        for router in self._routers:
            router.changed(load)

    def transferred(self, payload_bytes: int, seconds: float) -> None:
        """One KV write was applied."""
        for router in self._routers:
            router.transferred(payload_bytes, seconds)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Router:
    """One router's stream, and the measurements that it has not been told yet."""

    def __init__(
        self, address: str, registration: Callable[[], pb.Registration], options: TransportOptions
    ) -> None:
        self._address = address
        self._registration = registration
        self._options = options
        self._news = asyncio.Event()
        self._load: LoadReport | None = None
        self._loaded_s = 0.0
        self._prefill: deque[tuple[int, int, float]] = deque(maxlen=KEEP_SAMPLES)
        self._decode: deque[tuple[int, int, float]] = deque(maxlen=KEEP_SAMPLES)
        self._transfer: deque[tuple[int, float]] = deque(maxlen=KEEP_SAMPLES)
        self._arrived: deque[str] = deque(maxlen=KEEP_ARRIVED)

    def changed(self, load: LoadReport) -> None:
        self._load, self._loaded_s = load, time.monotonic()
        self._prefill.extend(load.prefill_samples)
        self._decode.extend(load.decode_samples)
        self._arrived.extend(load.arrived)
        self._news.set()

    def transferred(self, payload_bytes: int, seconds: float) -> None:
        self._transfer.append((payload_bytes, seconds))

    async def keep(self) -> None:
        """Announce for ever; a refusal or a break is tried again."""
        refused = ""
        while True:
            try:
                async with channel(self._address, self._options) as connection:
                    await self._announce(connection)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION and error.details() != refused:
                    refused = error.details() or ""
                    log.error("a router refused this node", router=self._address, reason=refused)
            await asyncio.sleep(RETRY_S)

    async def _announce(self, connection: grpc.aio.Channel) -> None:
        lease_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        call = RegistryStub(connection).Announce(self._requests(lease_s, over))
        try:
            await self._listen(call, lease_s)
        finally:  # a call that failed leaves its requests' iterator waiting
            over.set()
            lease_s.cancel()
            self._news.set()

    async def _listen(
        self, call: grpc.aio.StreamStreamCall[Any, Any], lease_s: asyncio.Future[float]
    ) -> None:
        async for response in call:
            match response.WhichOneof("message"):
                case "welcome":
                    log.info("announced", router=self._address, router_id=response.welcome.router_id)
                    if not lease_s.done():
                        lease_s.set_result(response.welcome.lease_s)
                case "incompatible":
                    log.error(
                        "cannot work with another node",
                        peer=response.incompatible.node_id,
                        differs=list(response.incompatible.items),
                    )

    async def _requests(
        self, lease_s: asyncio.Future[float], over: asyncio.Event
    ) -> AsyncIterator[pb.AnnounceRequest]:
        yield pb.AnnounceRequest(registration=self._registration())
        interval_s = max(MIN_INTERVAL_S, await lease_s / 3)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._news.wait()
            if over.is_set():
                return
            self._news.clear()
            if self._load is not None:
                yield pb.AnnounceRequest(load=codec_node.load_to_proto(self._take()))
            await asyncio.sleep(MIN_INTERVAL_S)

    def _take(self) -> LoadReport:
        assert self._load is not None
        load = replace(
            self._load,
            age_s=time.monotonic() - self._loaded_s,
            prefill_samples=tuple(self._prefill),
            decode_samples=tuple(self._decode),
            transfer_samples=tuple(self._transfer),
            arrived=tuple(self._arrived),
        )
        self._prefill.clear()
        self._decode.clear()
        self._transfer.clear()
        self._arrived.clear()
        return load
