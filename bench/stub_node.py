"""A node without a model: real gRPC services, scripted tokens. For benchmarks, and tests of what is round it.

It runs in steps like a real one: each step gives every running request its next tokens and sends each router
one message with all of them. Nodes of one process know each other (`PEERS`), so a stub prefill node can hand
its requests to a stub decode node.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError, FailedPrecondition, NotFound
from baton.core.load import LoadReport, Role
from baton.core.model import PROTOCOL_VERSION, Fingerprint, ModelInfo
from baton.core.node_effects import TokensOut
from baton.core.request import FinishReason, Request
from baton.node import wire
from baton.node.outbox import next_message
from baton.proto.v1 import (
    node_pb2,
    node_pb2_grpc,
    prefill_node_pb2,
    prefill_node_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from baton.runtime import codec
from baton.runtime.codec_node import LayoutFacts, Registration, load_to_proto, registration_to_proto
from baton.runtime.grpc_channel import DEFAULT, TransportOptions, channel
from baton.runtime.grpc_server import GrpcServer, ServerOptions

Script = Callable[[Request], Sequence[int]]

PEERS: dict[str, StubNode] = {}
_incarnations = itertools.count(1)


def count_up(request: Request) -> Sequence[int]:
    """The default script: as many tokens as may be, 3, 4, 5, ... below 256."""
    return [3 + i % 253 for i in range(request.max_tokens)]


@dataclass(slots=True)
class StubConfig:
    """script: all output of a request from its start. step_s: pause between steps. prefill_s: before the
    first token. tokens_per_step: at most, per request. max_running: more are refused."""

    role: Role = Role.BOTH
    script: Script = count_up
    step_s: float = 0.001
    prefill_s: float = 0.0
    tokens_per_step: int = 1
    vocab_size: int = 331
    max_model_len: int = 4096
    eos_token_ids: tuple[int, ...] = (2,)
    fingerprint: Fingerprint = field(
        default_factory=lambda: Fingerprint(
            str(PROTOCOL_VERSION), "stub", "w0", "t0", "g0", "none", "float32", "native"
        )
    )
    report_s: float = 0.1
    max_running: int = 1024
    transport: TransportOptions = DEFAULT


@dataclass(slots=True, eq=False)
class Running:
    router_id: str
    request: Request
    decode: str
    script: list[int]
    index: int
    ready_s: float
    started: bool = False


class StubNode(node_pb2_grpc.NodeServicer, prefill_node_pb2_grpc.PrefillNodeServicer):
    """`await start(registry_address, ...)`, `await stop()`. Attributes are for tests to look at and set.

    gate: cleared, no tokens are made. refuse: the error of every Prefill from now on. delay_s: how long each
    Prefill waits before it answers.
    """

    def __init__(self, node_id: str = "stub-0", config: StubConfig | None = None) -> None:
        self.node_id = node_id
        self.config = config or StubConfig()
        self.role = self.config.role
        self.incarnation = f"i{next(_incarnations)}"
        self.running: dict[tuple[str, int], Running] = {}
        self.received: list[Request] = []
        self.aborted: list[tuple[str, int]] = []
        self.draining = False
        self.refuse: BatonError | None = None
        self.delay_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.steps = 0
        self._outboxes: dict[str, asyncio.Queue[node_pb2.AttachResponse]] = {}
        self._work = asyncio.Event()
        self._server: GrpcServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seq = itertools.count(1)

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    async def start(self, *registries: str) -> None:
        """Serve, and announce to these routers until `stop`."""
        self._server = GrpcServer(ServerOptions(transport=self.config.transport.inner))
        self._server.add("baton.v1.Node", node_pb2_grpc.add_NodeServicer_to_server, self)
        self._server.add(
            "baton.v1.PrefillNode", prefill_node_pb2_grpc.add_PrefillNodeServicer_to_server, self
        )
        await self._server.start()
        PEERS[self.node_id] = self
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run())]
        self._tasks += [loop.create_task(self._announce(address)) for address in registries]

    async def stop(self) -> None:
        """As if killed: connections break at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if PEERS.get(self.node_id) is self:
            del PEERS[self.node_id]
        if self._server is not None:
            await self._server.stop()

    # -- services -------------------------------------------------------------------------------------------

    async def Describe(self, request: Any, context: Any) -> node_pb2.DescribeResponse:
        return node_pb2.DescribeResponse(registration=registration_to_proto(self.registration()))

    async def Attach(
        self, request: node_pb2.AttachRequest, context: Any
    ) -> AsyncIterator[node_pb2.AttachResponse]:
        outbox = self._outboxes[request.router_id] = asyncio.Queue(maxsize=4)
        try:
            await context.send_initial_metadata(())
            while True:
                yield await outbox.get()
        finally:
            if self._outboxes.get(request.router_id) is outbox:
                del self._outboxes[request.router_id]
            for key, item in list(self.running.items()):
                if item.router_id == request.router_id:
                    del self.running[key]

    async def Prefill(
        self, request: prefill_node_pb2.PrefillRequest, context: Any
    ) -> prefill_node_pb2.PrefillResponse:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.refuse is not None:
            raise self.refuse
        if request.router_id not in self._outboxes:
            raise FailedPrecondition("attach first")
        asked = await codec.checked_request(request.request, self.registration().model)
        self.received.append(asked)
        self._add(
            Running(
                request.router_id,
                asked,
                request.decode.node_id,
                list(self.config.script(asked))[: asked.max_tokens],
                len(asked.output_ids),
                asyncio.get_running_loop().time() + self.config.prefill_s,
            )
        )
        return prefill_node_pb2.PrefillResponse()

    async def Lend(
        self, request: prefill_node_pb2.LendRequest, context: Any
    ) -> prefill_node_pb2.LendResponse:
        raise NotFound("it caches nothing")

    async def Abort(self, request: node_pb2.AbortRequest, context: Any) -> node_pb2.AbortResponse:
        for item in request.items:
            self.aborted.append((item.request_id, item.attempt))
            self.running.pop((item.request_id, item.attempt), None)
        return node_pb2.AbortResponse()

    async def SetRole(self, request: node_pb2.SetRoleRequest, context: Any) -> node_pb2.SetRoleResponse:
        self.role = codec.role_from_proto(request.role)
        return node_pb2.SetRoleResponse()

    async def Drain(self, request: node_pb2.DrainRequest, context: Any) -> node_pb2.DrainResponse:
        self.draining = request.draining
        return node_pb2.DrainResponse()

    async def KvSnapshot(self, request: Any, context: Any) -> node_pb2.KvSnapshotResponse:
        return node_pb2.KvSnapshotResponse(incarnation=self.incarnation, block_size=16)

    # -- steps ----------------------------------------------------------------------------------------------

    def _add(self, item: Running) -> None:
        self.running[item.request.id, item.request.attempt] = item
        self._work.set()

    async def _run(self) -> None:
        while True:
            if not self.running:
                self._work.clear()
                await self._work.wait()
            await self.gate.wait()
            self.steps += 1
            made: defaultdict[str, deque[node_pb2.NodeEvent | TokensOut]] = defaultdict(deque)
            now = asyncio.get_running_loop().time()
            for key, item in list(self.running.items()):
                if item.ready_s <= now:
                    self._advance(key, item, made[item.router_id])
            for router_id, events in made.items():
                while events and (outbox := self._outboxes.get(router_id)) is not None:
                    await outbox.put(next_message(events))
            await asyncio.sleep(self.config.step_s)

    def _advance(
        self, key: tuple[str, int], item: Running, out: deque[node_pb2.NodeEvent | TokensOut]
    ) -> None:
        request = item.request
        at: dict[str, Any] = {"request_id": key[0], "attempt": key[1]}
        first = not item.started and item.decode != ""
        if first:
            item.started = True
            out.append(node_pb2.NodeEvent(**at, started=node_pb2.Started()))
        count = 1 if first else self.config.tokens_per_step
        ids = item.script[item.index : item.index + count]
        out.extend(wire.parts(_tokens(key, request, item.index, ids, prompt=first and item.index == 0)))
        item.index += len(ids)
        if item.index >= len(item.script):
            del self.running[key]
            limit = len(item.script) >= request.max_tokens and item.script[-1] not in _ends(request)
            reason = FinishReason.LENGTH if limit else FinishReason.STOP
            finished = node_pb2.Finished(reason=codec.reason_to_proto(reason), output_tokens=item.index)
            out.append(node_pb2.NodeEvent(**at, finished=finished))
        elif first and item.decode != self.node_id:
            del self.running[key]
            handed = node_pb2.HandedOff(prefill_s=0.001, transfer_s=0.001, transfer_bytes=1024)
            out.append(node_pb2.NodeEvent(**at, handed_off=handed))
            if (peer := PEERS.get(item.decode)) is not None:
                item.decode = ""
                peer._add(item)

    # -- membership -----------------------------------------------------------------------------------------

    def load(self) -> LoadReport:
        return LoadReport(
            seq=next(self._seq),
            role=self.role,
            draining=self.draining,
            running=len(self.running),
            blocks_total=1024,
            blocks_free=1024,
            block_size=16,
            max_running=self.config.max_running,
            steps=self.steps,
        )

    def registration(self) -> Registration:
        config = self.config
        info = ModelInfo(
            "stub", config.vocab_size, config.max_model_len, config.eos_token_ids, config.fingerprint
        )
        layout = LayoutFacts(16, 0, 2, 0, 2, 16, "float32", 1024)
        facts = Registration(
            self.node_id, self.incarnation, self.address, "", "host", 1, info, layout, 512, self.load()
        )
        return replace(facts)

    async def _announce(self, registry: str) -> None:
        """Announce, again whenever the stream breaks."""
        while True:
            async with channel(registry, self.config.transport.inner) as to_router:
                try:
                    await self._announce_once(to_router)
                except (grpc.RpcError, asyncio.InvalidStateError):  # the latter: written to when it was over
                    pass
            await asyncio.sleep(0.05)

    async def _announce_once(self, to_router: grpc.aio.Channel) -> None:
        stub: Any = registry_pb2_grpc.RegistryStub(to_router)
        call = stub.Announce()
        registration = registration_to_proto(self.registration())
        await call.write(registry_pb2.AnnounceRequest(registration=registration))
        await call.read()
        while True:
            await asyncio.sleep(self.config.report_s)
            await call.write(registry_pb2.AnnounceRequest(load=load_to_proto(self.load())))


def _ends(request: Request) -> tuple[int, ...]:
    eos = () if request.sampling.ignore_eos else request.eos_token_ids
    return (*request.sampling.stop_token_ids, *eos)


def _tokens(
    key: tuple[str, int], request: Request, index: int, ids: Sequence[int], *, prompt: bool
) -> TokensOut:
    """Logprobs are made up, but of the right shape."""
    sampling = request.sampling
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    if sampling.logprobs is not None:
        logprobs = _entries(ids, sampling.logprobs)
    if prompt and sampling.prompt_logprobs is not None:
        prompt_logprobs = _entries(request.prompt_ids[1:], sampling.prompt_logprobs)
    return TokensOut(key, index, tuple(ids), logprobs, prompt_logprobs)


def _entries(ids: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
    best = tuple((i, -0.5 - i) for i in range(top))
    return tuple([TokenLogprobs(token, -0.25, best) for token in ids])
