"""Announce streams at moments that are hard to hit with real ones."""

import asyncio
from typing import Any

import pytest

from baton.core.errors import Unavailable
from baton.proto.v1 import registry_pb2 as pb
from baton.router.membership import Member
from baton.router.registry import RegistryService


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
        await asyncio.wait_for(serving, 2)
