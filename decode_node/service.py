"""The DecodeNode service: hand-off links in, commands to the engine, the sink's effects back out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import grpc
import structlog

from baton.core.errors import BatonError, FailedPrecondition, InvalidArgument, Unavailable
from baton.core.model import ModelInfo
from baton.core.node_effects import DropLink, Fence, SendCommitted, SendRefusal, SendRevoke, SendTicket
from baton.core.prefix import HASH_BYTES
from baton.core.request import Request
from baton.decode_node.links import Link, Links, Out
from baton.kv_transfer.api import KvTransport
from baton.kv_transfer.handoff import Loan
from baton.kv_transfer.layout import KvLayout, compatible
from baton.proto.v1 import decode_node_pb2 as pb
from baton.proto.v1.decode_node_pb2_grpc import DecodeNodeServicer
from baton.runtime import checks, codec, codec_node

log = structlog.get_logger(__name__)

HELLO_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What this node says of itself in its Hello."""

    node_id: str
    incarnation: str
    host_id: str
    model: ModelInfo
    layout: KvLayout
    lease_s: float


class SinkPort(Protocol):
    """What the service may ask of the engine. Implemented by the node's shell."""

    def link_up(self, link: str, returned: bool) -> None: ...

    def link_beat(self, link: str) -> None: ...

    def link_lost(self, link: str) -> None: ...

    def writer_dead(self, link: str) -> None: ...

    def reserve(self, link: str, transfer_id: int, request: Request, router_id: str) -> None:
        """BatonError: refused at once."""

    def offer(self, link: str, transfer_id: int, loan: Loan) -> None: ...

    def commit(self, link: str, transfer_id: int, tokens: int, output_ids: tuple[int, ...]) -> None: ...

    def abandon(self, link: str, transfer_id: int, *, revoked: bool) -> None: ...

    def fenced(self, link: str, transfer_id: int) -> None: ...


class DecodeService(DecodeNodeServicer):
    """stale: called with a reason for every message that was dropped as stale."""

    def __init__(
        self,
        facts: Facts,
        port: SinkPort,
        transports: Mapping[str, KvTransport],
        stale: Callable[[str], None],
    ) -> None:
        self._facts = facts
        self._port = port
        self._transports = transports
        self._stale = stale
        self._links = Links(port.writer_dead)

    async def Handoff(
        self, request_iterator: AsyncIterator[pb.HandoffRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.HandoffResponse]:
        hello = await self._hello(request_iterator)
        name = f"{hello.node_id}/{hello.incarnation}"
        pid = hello.pid if hello.host_id == self._facts.host_id and hello.pid else None
        link, returned = self._links.open(name, hello.incarnation, pid)
        link.kv_dtype = hello.layout.dtype
        out = link.out
        assert out is not None
        log.info("hand-off link up", link=name, returned=returned)
        self._port.link_up(name, returned)
        reader = asyncio.create_task(self._read(link, out, request_iterator))
        try:
            yield pb.HandoffResponse(hello=self._own_hello())
            while (message := await out.get()) is not None:
                yield message
            if reader.done():  # else we end it: a dropped link, or a newer stream took it over
                reader.result()  # a bad message is the stream's status
        finally:
            reader.cancel()
            if self._links.closed(link, out):
                log.info("hand-off link down", link=name)
                self._port.link_lost(name)

    def close(self) -> None:
        self._links.close()

    # ---- effects of the sink -----------------------------------------------------------------------------

    def carry_out(
        self, effect: SendTicket | SendRefusal | SendCommitted | SendRevoke | Fence | DropLink
    ) -> None:
        if isinstance(effect, DropLink):
            self._links.drop(effect.link)
            return
        ref = pb.TransferRef(transfer_id=effect.transfer_id, incarnation=self._facts.incarnation)
        match effect:
            case SendTicket(link, transfer_id, cached_tokens, blocks):
                self._open(link, transfer_id, blocks)
                ticket = pb.Ticket(transfer=ref, cached_tokens=cached_tokens, blocks=blocks)
                self._links.send(link, pb.HandoffResponse(ticket=ticket))
            case SendRefusal(link, _, error):
                refusal = pb.Refusal(transfer=ref, fault=codec.fault_to_proto(error))
                self._links.send(link, pb.HandoffResponse(refused=refusal))
            case SendCommitted(link, transfer_id):
                self._forget(link, transfer_id)
                self._links.send(link, pb.HandoffResponse(committed=ref))
            case SendRevoke(link):
                self._links.send(link, pb.HandoffResponse(revoke=ref))
            case Fence(link, transfer_id):
                if self._fence(link, transfer_id):
                    self._port.fenced(link, transfer_id)

    def _open(self, name: str, transfer_id: int, blocks: tuple[int, ...]) -> None:
        link = self._links.get(name)
        if link is not None and link.transport:
            self._transports[link.transport].open(transfer_id, link.incarnation, blocks)
            link.opened.add(transfer_id)

    def _fence(self, name: str, transfer_id: int) -> bool:
        """Whether no write of it can land any more. A link that is forgotten has no writer left."""
        link = self._links.get(name)
        if link is None or transfer_id not in link.opened:
            return True
        if not self._transports[link.transport].fence(transfer_id, link.incarnation):
            return False
        link.opened.discard(transfer_id)
        return True

    def _forget(self, name: str, transfer_id: int) -> None:
        """The writer's word settles it, where no fence could."""
        link = self._links.get(name)
        if link is not None:
            link.opened.discard(transfer_id)

    # ---- messages ----------------------------------------------------------------------------------------

    async def _hello(self, requests: AsyncIterator[pb.HandoffRequest]) -> pb.PrefillHello:
        try:
            first = await asyncio.wait_for(anext(requests), HELLO_TIMEOUT_S)
        except (StopAsyncIteration, TimeoutError):
            raise InvalidArgument("a hand-off link begins with a hello", field="hello") from None
        if first.WhichOneof("message") != "hello":
            raise InvalidArgument("a hand-off link begins with a hello", field="hello")
        hello = first.hello
        for field in ("node_id", "incarnation", "host_id"):
            checks.printable(f"hello.{field}", getattr(hello, field))
        theirs = codec_node.fingerprint_from_proto(hello.fingerprint)
        layout = KvLayout(**asdict(codec_node.layout_from_proto(hello.layout)))
        differing = theirs.differing(self._facts.model.fingerprint) + compatible(layout, self._facts.layout)
        if differing:
            log.error("refused a prefill node", peer=hello.node_id, differs=differing)
            raise FailedPrecondition(
                f"prefill node {hello.node_id} does not fit decode node {self._facts.node_id}: "
                + "; ".join(differing)
            )
        return hello

    def _own_hello(self) -> pb.DecodeHello:
        facts = self._facts
        endpoints = []
        for transport in self._transports.values():
            endpoint = transport.describe()
            endpoints.append(pb.TransportEndpoint(kind=endpoint.kind, params=dict(endpoint.params)))
        return pb.DecodeHello(
            node_id=facts.node_id,
            incarnation=facts.incarnation,
            fingerprint=codec_node.fingerprint_to_proto(facts.model.fingerprint),
            layout=codec_node.layout_to_proto(facts.layout),
            host_id=facts.host_id,
            endpoints=endpoints,
            lease_s=facts.lease_s,
        )

    async def _read(self, link: Link, out: Out, requests: AsyncIterator[pb.HandoffRequest]) -> None:
        """Until the stream ends or says something that makes no sense; then `out` is closed."""
        try:
            async for message in requests:
                if link.out is not out:
                    return
                if message.WhichOneof("message") == "reserve":
                    await self._reserve(link, out, message.reserve)
                else:
                    self._on_message(link, message)
        finally:
            if link.out is out:
                out.put_nowait(None)

    def _on_message(self, link: Link, message: pb.HandoffRequest) -> None:
        kind = message.WhichOneof("message")
        if kind == "beat":
            self._port.link_beat(link.name)
        elif kind == "choice":
            if message.choice.kind not in self._transports:
                raise InvalidArgument(f"{message.choice.kind!r} was not offered", field="choice.kind")
            if link.opened and message.choice.kind != link.transport:
                raise InvalidArgument("cannot change under open transfers", field="choice.kind")
            link.transport = message.choice.kind
        elif kind == "commit":
            commit = message.commit
            if self._fresh(commit.transfer):
                self._port.commit(
                    link.name, commit.transfer.transfer_id, commit.tokens, tuple(commit.output_ids)
                )
        elif kind in ("abandon", "revoked"):
            ref: pb.TransferRef = getattr(message, kind)
            if self._fresh(ref):
                self._fence(link.name, ref.transfer_id)
                self._forget(link.name, ref.transfer_id)
                self._port.abandon(link.name, ref.transfer_id, revoked=kind == "revoked")
        else:
            raise InvalidArgument(f"unexpected message {kind!r}", field="message")

    def _fresh(self, ref: pb.TransferRef) -> bool:
        if ref.incarnation == self._facts.incarnation:
            return True
        self._stale("incarnation")
        return False

    async def _reserve(self, link: Link, out: Out, message: pb.Reserve) -> None:
        try:
            if not link.transport:
                raise Unavailable("the link has not chosen a transport")
            if message.HasField("loan"):
                self._port.offer(link.name, message.transfer_id, self._loan(link, message.loan))
                return
            request = await codec.checked_request(message.request, self._facts.model)
            if link.out is not out:
                return  # over meanwhile
            self._port.reserve(link.name, message.transfer_id, request, message.router_id)
        except BatonError as error:
            self.carry_out(SendRefusal(link.name, message.transfer_id, error))

    def _loan(self, link: Link, message: pb.Loan) -> Loan:
        """Only what was stored as it would be here: converted KV is not what this node computes."""
        if link.kv_dtype != self._facts.layout.dtype:
            raise FailedPrecondition(f"kv_dtype is {self._facts.layout.dtype} here, {link.kv_dtype} there")
        if len(message.last_key) != HASH_BYTES:
            raise InvalidArgument(f"must be {HASH_BYTES} bytes", field="loan.last_key")
        name = checks.printable("loan.request_id", message.request_id, least=1)
        return Loan((name, message.attempt), message.tokens, message.last_key)
