"""Asking another node for KV, over real sockets: when the request is told that nothing will come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from baton.core.errors import NotFound
from baton.core.model import Fingerprint
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.kv_transfer.layout import KvLayout
from baton.prefill_node.fetcher import Fetcher, Lender
from baton.prefill_node.link import Identity, Target
from baton.proto.v1 import prefill_node_pb2 as pb
from baton.proto.v1.prefill_node_pb2_grpc import PrefillNodeServicer, add_PrefillNodeServicer_to_server
from baton.runtime.grpc_channel import TransportOptions
from tests.fakes import eventually

KEY = ("r", 1)


class LenderNode(PrefillNodeServicer):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[pb.LendRequest] = []
        self.cancelled = 0
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def Lend(self, request: pb.LendRequest, context: grpc.aio.ServicerContext) -> pb.LendResponse:
        self.asked.append(request)
        try:
            return pb.LendResponse(tokens=await asyncio.shield(self.answer))
        except NotFound as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class World:
    """A lender, and a fetcher that has asked it."""

    def __init__(self, lender: LenderNode, server: grpc.aio.Server, fetcher: Fetcher, failed: list[Key]):
        self.lender, self.server, self.fetcher, self.failed = lender, server, fetcher, failed


@asynccontextmanager
async def asked() -> AsyncIterator[World]:
    failed: list[Key] = []
    lender, server = LenderNode(), grpc.aio.server()
    add_PrefillNodeServicer_to_server(lender, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    fetcher = Fetcher(identity(), lambda: "127.0.0.1:1", failed.append, TransportOptions())
    target = Target("lender", "l1", f"127.0.0.1:{port}")
    request = Request(KEY[0], tuple(range(8)), attempt=KEY[1])
    try:
        fetcher.start(request, Lender(target, 8, 1.0))
        await eventually(lambda: lender.asked)
        yield World(lender, server, fetcher, failed)
    finally:
        await fetcher.close()
        await server.stop(0)


def identity() -> Identity:
    model = Fingerprint("1", "fake", "w", "t", "g", "none", "float32", "native")
    return Identity("asker", "a1", "host", 1, model, KvLayout(4, 0, 2, 0, 1, 8, "float32", 16), 10.0)


async def test_it_names_whole_blocks_and_itself() -> None:
    async with asked() as world:
        (request,) = world.lender.asked
        assert (request.request_id, request.attempt, len(request.keys)) == (*KEY, 2)
        assert (request.target.node_id, request.target.incarnation) == ("asker", "a1")


async def test_a_refusal_is_told() -> None:
    async with asked() as world:
        world.lender.answer.set_exception(NotFound("nothing of it is cached here any more"))
        await eventually(lambda: world.failed == [KEY])


async def test_a_lender_that_dies_after_its_promise_is_noticed_at_once() -> None:
    """Before any link of the hand-off is there to break."""
    async with asked() as world:
        await world.server.stop(0)
        await eventually(lambda: world.failed == [KEY])


async def test_what_has_come_is_no_failure() -> None:
    async with asked() as world:
        world.lender.answer.set_result(8)
        await eventually(lambda: not world.fetcher.asking)
        assert not world.failed


@pytest.mark.parametrize("times", [1, 2])
async def test_a_request_that_waits_no_longer_gives_its_call_up(times: int) -> None:
    async with asked() as world:
        for _ in range(times):
            world.fetcher.over(KEY)
        await eventually(lambda: world.lender.cancelled == 1)
        assert not world.fetcher.asking
        assert not world.failed
