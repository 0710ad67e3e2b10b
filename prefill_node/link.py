"""The prefill side of one hand-off link: the stream to one decode process, and the way into its pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import structlog

from baton.core.errors import BatonError, FailedPrecondition, Unavailable
from baton.core.model import Fingerprint
from baton.kv_transfer.api import Connection, Endpoint, KvTransport, Peer
from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.select import pick
from baton.proto.v1 import decode_node_pb2 as pb
from baton.proto.v1.decode_node_pb2_grpc import DecodeNodeStub
from baton.runtime import codec_node
from baton.runtime.grpc_channel import TransportOptions, channel
from baton.runtime.grpc_errors import from_rpc_error

log = structlog.get_logger(__name__)

HELLO_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """A decode process. A restarted one is another target."""

    node_id: str
    incarnation: str
    address: str

    @property
    def name(self) -> str:
        return f"{self.node_id}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What this node says of itself in its Hello."""

    node_id: str
    incarnation: str
    host_id: str
    pid: int
    fingerprint: Fingerprint
    layout: KvLayout
    lease_s: float


class Link:
    """One life of a link: `run` it once. `connection` and `peer_layout` are set from `on_up` on."""

    def __init__(
        self,
        target: Target,
        identity: Identity,
        transports: Mapping[str, KvTransport],
        options: TransportOptions,
    ) -> None:
        self.target = target
        self.peer_layout: KvLayout | None = None
        self.connection: Connection | None = None
        self._identity = identity
        self._transports = transports
        self._options = options
        self._out: asyncio.Queue[pb.HandoffRequest | None] = asyncio.Queue()  # None: no more
        self._ending: asyncio.Future[BatonError] = asyncio.get_running_loop().create_future()

    def send(self, message: pb.HandoffRequest) -> None:
        self._out.put_nowait(message)

    def end(self, error: BatonError) -> None:
        """Have `run` return this. Idempotent."""
        if not self._ending.done():
            self._ending.set_result(error)

    async def run(
        self, on_up: Callable[[], None], on_message: Callable[[pb.HandoffResponse], None]
    ) -> BatonError:
        """Until the link breaks; returns why."""
        beats: asyncio.Task[None] | None = None
        try:
            async with channel(self.target.address, self._options) as grpc_channel:
                call = DecodeNodeStub(grpc_channel).Handoff(self._requests())
                lease_s = await self._shake_hands(call)
                beats = asyncio.create_task(self._beat(lease_s))
                on_up()
                return await self._serve(call, on_message)
        except grpc.aio.AioRpcError as error:
            return _explained(self.target, from_rpc_error(error))
        except BatonError as error:
            return error
        finally:
            if beats is not None:
                beats.cancel()
            if self.connection is not None:
                self.connection.close()
            self._out.put_nowait(None)  # a call that failed leaves its requests' iterator waiting

    async def _serve(
        self, call: grpc.aio.StreamStreamCall[Any, Any], on_message: Callable[[pb.HandoffResponse], None]
    ) -> BatonError:
        """Until the peer ends the stream, or `end` is called; returns why."""

        async def read() -> BatonError:
            while (response := await _read(call)) is not None:
                on_message(response)
            return Unavailable(f"decode node {self.target.name} closed the hand-off link")

        reading = asyncio.create_task(read())
        try:
            await asyncio.wait((reading, self._ending), return_when=asyncio.FIRST_COMPLETED)
            return self._ending.result() if self._ending.done() else reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _shake_hands(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> float:
        """Learn the peer's pool, open the way into it. Returns the lease in seconds."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await _read(call)
        except TimeoutError:
            raise Unavailable(
                f"decode node {self.target.name} did not answer in {HELLO_TIMEOUT_S} s"
            ) from None
        if first is None or first.WhichOneof("message") != "hello":
            raise Unavailable(f"decode node {self.target.name} did not say hello")
        hello = first.hello
        if hello.incarnation != self.target.incarnation:
            raise Unavailable(f"{self.target.address} is another process than {self.target.name} by now")
        differing = self._identity.fingerprint.differing(codec_node.fingerprint_from_proto(hello.fingerprint))
        if differing:
            raise FailedPrecondition(
                f"prefill node {self._identity.node_id} does not fit decode node {hello.node_id}: "
                + "; ".join(differing)
            )
        layout = KvLayout(**asdict(codec_node.layout_from_proto(hello.layout)))
        endpoints = [Endpoint(e.kind, dict(e.params)) for e in hello.endpoints]
        self.connection = await self._connect(hello, layout, endpoints)
        self.peer_layout = layout
        return hello.lease_s if 0.1 <= hello.lease_s < 1e6 else self._identity.lease_s

    async def _connect(
        self, hello: pb.DecodeHello, layout: KvLayout, endpoints: Sequence[Endpoint]
    ) -> Connection:
        endpoint = pick(endpoints, self._identity.host_id, hello.host_id, tuple(self._transports))
        peer = Peer(hello.node_id, hello.incarnation, layout, endpoint)
        connection = await asyncio.to_thread(self._transports[endpoint.kind].connect, peer)
        self.send(pb.HandoffRequest(choice=pb.TransportChoice(kind=endpoint.kind)))
        log.info("hand-off link up", decode=self.target.name, transport=endpoint.kind)
        return connection

    async def _requests(self) -> AsyncIterator[pb.HandoffRequest]:
        identity = self._identity
        yield pb.HandoffRequest(
            hello=pb.PrefillHello(
                node_id=identity.node_id,
                incarnation=identity.incarnation,
                fingerprint=codec_node.fingerprint_to_proto(identity.fingerprint),
                layout=codec_node.layout_to_proto(identity.layout),
                pid=identity.pid,
                host_id=identity.host_id,
                lease_s=identity.lease_s,
            )
        )
        while (message := await self._out.get()) is not None:
            yield message

    async def _beat(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 4)
            self.send(pb.HandoffRequest(beat=pb.Beat()))


async def _read(call: grpc.aio.StreamStreamCall[Any, Any]) -> pb.HandoffResponse | None:
    """The next response; None at the stream's good end. AioRpcError: the peer ended it with an error."""
    response = await call.read()
    if isinstance(response, pb.HandoffResponse):
        return response
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            await call.details(),
            None,
        )
    return None


def _explained(target: Target, error: BatonError) -> BatonError:
    with contextlib.suppress(AttributeError):
        error.message = f"hand-off link to {target.name}: {error.message}"
    return error
