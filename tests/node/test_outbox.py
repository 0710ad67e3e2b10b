"""Events on their way to a router."""

import asyncio

import pytest

from baton.core.batch import TokenLogprobs
from baton.core.errors import Unavailable
from baton.core.node_effects import TokensOut
from baton.node import wire
from baton.node.outbox import Outbox
from baton.proto.v1 import node_pb2 as pb
from baton.runtime import codec
from baton.runtime.grpc_channel import PIECE_BYTES


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


async def test_messages_are_filled_to_their_size() -> None:
    outbox = Outbox("router", 10**6)
    outbox.put(events(20_000))
    sizes = [message.ByteSize() for message in await read(outbox, 20_000)]
    assert len(sizes) > 2
    assert all(PIECE_BYTES <= size < 1.5 * PIECE_BYTES for size in sizes[:-1])


def with_prompt_logprobs(entries: int, top: int) -> TokensOut:
    best = tuple((2**17 + i, -0.5) for i in range(top))
    return TokensOut(
        ("r", 1),
        0,
        (5, 6),
        (TokenLogprobs(5, -1.0),) * 2,
        tuple(TokenLogprobs(i, -1.5, best) for i in range(entries)),
    )


@pytest.mark.parametrize(("entries", "top"), [(3, 2), (3_000, 331), (300, 1024), (50_000, 0)])
async def test_a_prompts_logprobs_are_spread_over_messages(entries: int, top: int) -> None:
    """In order, none of more than a piece, the tokens with the last; small ones stay one event."""
    effect = with_prompt_logprobs(entries, top)
    outbox = Outbox("router", 10**6)
    outbox.put(wire.parts(effect))
    outbox.put(events(1))
    got: list[pb.NodeEvent] = []
    async for message in outbox.messages():
        assert message.ByteSize() <= 2 * PIECE_BYTES
        got += message.events
        if got[-1].request_id == "r" and got[-1].WhichOneof("event") is None:
            break
    tokens = [event.tokens for event in got[:-1]]
    assert (len(tokens) == 1) == (effect == with_prompt_logprobs(3, 2))
    assert codec.logprobs_from_proto([e for t in tokens for e in t.prompt_logprobs]) == effect.prompt_logprobs
    assert [list(t.ids) for t in tokens] == [[]] * (len(tokens) - 1) + [[5, 6]]
    assert [len(t.logprobs) for t in tokens] == [0] * (len(tokens) - 1) + [2]


async def test_large_events_fill_a_message_by_their_bytes() -> None:
    outbox = Outbox("router", 10**6)
    outbox.put([pb.NodeEvent(request_id="x" * 1000)] * 1000)
    sizes = [message.ByteSize() for message in await read(outbox, 1000)]
    assert len(sizes) <= 1000 * 1020 // PIECE_BYTES + 1
    assert max(sizes) <= PIECE_BYTES + 1020


async def test_a_reader_that_stopped_is_let_go() -> None:
    outbox = Outbox("router", 10)
    outbox.put(events(11))
    assert outbox.closed
    outbox.put(events(1))
    with pytest.raises(Unavailable, match="has not read 11 events"):
        await read(outbox, 1)


async def test_what_was_put_before_a_close_is_still_sent() -> None:
    """Regression: the last tokens of a node that had drained in time were lost when it stopped at once."""
    outbox = Outbox("router", 10)
    outbox.put(events(3))
    outbox.close("the node is stopping")
    messages = outbox.messages()
    assert len((await anext(messages)).events) == 3
    with pytest.raises(Unavailable, match="the node is stopping"):
        await anext(messages)


async def test_a_close_ends_a_waiting_reader_with_the_reason() -> None:
    outbox = Outbox("router", 10)
    reading = asyncio.create_task(read(outbox, 1))
    await asyncio.sleep(0)
    outbox.close("the node is stopping")
    with pytest.raises(Unavailable, match="the node is stopping"):
        await reading
