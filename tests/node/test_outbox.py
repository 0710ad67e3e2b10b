"""Events on their way to a router."""

import asyncio

import pytest

from baton.core.errors import Unavailable
from baton.node.outbox import MESSAGE_EVENTS, Outbox
from baton.proto.v1 import node_pb2 as pb


def events(count: int, start: int = 0) -> list[pb.NodeEvent]:
    return [pb.NodeEvent(request_id="r", attempt=start + i) for i in range(count)]


async def read(outbox: Outbox, count: int) -> list[pb.AttachResponse]:
    """Messages until `count` events were read."""
    got: list[pb.AttachResponse] = []
    async for message in outbox.messages():
        got.append(message)
        if sum(len(m.events) for m in got) >= count:
            break
    return got


async def test_a_slow_reader_gets_fewer_larger_messages_in_order() -> None:
    outbox = Outbox("router", 10**6)
    for i in range(100):
        outbox.put(events(1, i))
    messages = await read(outbox, 100)
    assert len(messages) == 1
    assert [event.attempt for event in messages[0].events] == list(range(100))


async def test_messages_stay_within_their_size() -> None:
    outbox = Outbox("router", 10**6)
    outbox.put(events(2 * MESSAGE_EVENTS + 1))
    sizes = [len(message.events) for message in await read(outbox, 2 * MESSAGE_EVENTS + 1)]
    assert sizes == [MESSAGE_EVENTS, MESSAGE_EVENTS, 1]


async def test_a_reader_that_stopped_is_let_go() -> None:
    outbox = Outbox("router", 10)
    outbox.put(events(11))
    assert outbox.closed
    outbox.put(events(1))
    with pytest.raises(Unavailable, match="has not read 11 events"):
        await read(outbox, 1)


async def test_a_close_ends_a_waiting_reader_with_the_reason() -> None:
    outbox = Outbox("router", 10)
    reading = asyncio.create_task(read(outbox, 1))
    await asyncio.sleep(0)
    outbox.close("the node is stopping")
    with pytest.raises(Unavailable, match="the node is stopping"):
        await reading
