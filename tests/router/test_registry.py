"""Announce streams at moments that are hard to hit with real ones."""

import asyncio
import itertools
from typing import Any

import grpc
import pytest

from baton.core.errors import Unavailable
from baton.proto.v1 import registry_pb2 as pb
from baton.router.machine_config import RouterConfig
from baton.router.membership import Member
from baton.router.registry import RegistryService
from baton.runtime.codec_node import registration_to_proto
from tests.fakes import StubNode, eventually, router_with


class Context:
    """The server's side of a stream: `arrive` lets the waiting read return."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[Any] | None = None

    async def read(self) -> Any:
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting

    def arrive(self, message: Any) -> None:
        assert self._waiting is not None
        if not self._waiting.done():
            self._waiting.set_result(message)


@pytest.mark.parametrize("turns", range(-3, 6))
async def test_a_lost_node_is_told_so_even_while_its_report_comes_in(turns: int) -> None:
    """Regression: a report in the wrong turn of the loop kept the stream open, and the node outside for good.

    turns: by which the report comes after the loss.
    """
    unused: Any = None
    member, context = Member(unused, unused), Context()
    stream: Any = RegistryService(unused, 3.0, 6.0)._serve(member, context)
    serving = asyncio.create_task(stream)
    await asyncio.sleep(0.01)
    report = pb.AnnounceRequest()  # of no kind that counts here
    moves = [lambda: context.arrive(report), member.lost.set]
    for move in moves if turns < 0 else reversed(moves):
        move()
        for _ in range(abs(turns)):
            await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(serving, 20)


async def test_patience_begins_anew_with_each_announcement_that_ends() -> None:
    """Regression: the end of an earlier one cut it short, and with it every request on the node."""
    for _ in range(10):
        if not await _lost_between_announcements():
            return
    raise AssertionError("lost although it announced itself in time")


async def _lost_between_announcements() -> bool:
    """After two that are apart by less than patience, and together more: a busy machine may be too late."""
    node = StubNode()
    settings = RouterConfig(lease_s=0.5)
    async with router_with(node, machine=settings) as cluster:
        (member,) = cluster.app.membership.members.values()
        patience_s = settings.lease_s * settings.lost_leases
        registry: Any = RegistryService(cluster.app.membership, settings.lease_s, patience_s)
        context = AnnounceContext(registration_to_proto(node.registration()))
        member.announcing -= 1  # as if its own stream were not there
        await registry.Announce(None, context)
        await asyncio.sleep(patience_s * 0.6)
        await registry.Announce(None, context)
        await asyncio.sleep(patience_s * 0.6)
        early = member.lost.is_set()
        await eventually(member.lost.is_set, 5 * patience_s)
        return early


class AnnounceContext:
    """A stream that registers, and ends."""

    def __init__(self, registration: pb.Registration) -> None:
        self._messages = itertools.cycle([pb.AnnounceRequest(registration=registration), grpc.aio.EOF])

    async def read(self) -> Any:
        return next(self._messages)

    async def write(self, message: Any) -> None: ...
