"""The event bus over real sockets: order, gaps, restarts, rubbish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from baton.core.errors import FailedPrecondition
from baton.proto.v1.registry_pb2 import KvEvents
from baton.runtime.bus import Gap, Publisher, Subscriber


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Publisher, Subscriber]]:
    publisher = Publisher("node-a", "inc-1")
    subscriber = Subscriber(publisher.endpoint)
    yield publisher, subscriber
    subscriber.close()
    publisher.close()


async def joined(publisher: Publisher, subscriber: Subscriber) -> AsyncIterator[KvEvents | Gap]:
    """Beat until the subscription has reached the publisher: what comes first is the opening gap."""
    items = aiter(subscriber)
    first = asyncio.ensure_future(anext(items))
    while not first.done():
        publisher.beat()
        await asyncio.wait([first], timeout=0.01)
    assert isinstance(first.result(), Gap)
    return items


async def next_with_keys(items: AsyncIterator[KvEvents | Gap]) -> KvEvents | Gap:
    async with asyncio.timeout(10):
        async for item in items:
            if isinstance(item, Gap) or item.stored or item.removed:
                return item
    raise AssertionError


async def test_delivers_in_order_after_an_opening_gap(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    for i in range(100):
        publisher.publish([bytes([i])], [])
    got = [await next_with_keys(items) for _ in range(100)]
    assert [item.seq for item in got if isinstance(item, KvEvents)] == list(range(1, 101))
    assert [item.stored[0] for item in got if isinstance(item, KvEvents)] == [bytes([i]) for i in range(100)]


async def test_a_lost_message_is_a_gap(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    publisher.publish([b"a"], [])
    assert isinstance(await next_with_keys(items), KvEvents)
    publisher.seq += 3  # as if three had been dropped
    publisher.publish([b"b"], [])
    assert await next_with_keys(items) == Gap("inc-1", 2, 5)
    after = await next_with_keys(items)
    assert isinstance(after, KvEvents)
    assert list(after.stored) == [b"b"]


async def test_a_beat_shows_that_the_last_message_was_lost(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    publisher.seq += 1
    publisher.beat()
    assert await next_with_keys(items) == Gap("inc-1", 1, 1)


async def test_what_a_snapshot_covers_is_dropped(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    publisher.seq += 5
    for key in (b"6", b"7", b"8"):
        publisher.publish([key], [])
    assert isinstance(await next_with_keys(items), Gap)
    subscriber.resume("inc-1", 7)
    after = await next_with_keys(items)
    assert isinstance(after, KvEvents)
    assert (after.seq, list(after.stored)) == (8, [b"8"])


async def test_another_incarnation_is_a_gap(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    publisher.publish([b"a"], [])
    await next_with_keys(items)
    publisher._incarnation = "inc-2"
    publisher.publish([b"b"], [])
    assert await next_with_keys(items) == Gap("inc-2", None, 2)


async def test_a_subscriber_that_does_not_read_misses_messages_and_learns_it(
    pair: tuple[Publisher, Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    for _ in range(40_000):  # above both queues and the socket buffers
        publisher.publish([b"k" * 32] * 8, [])
    gaps, last = 0, 0
    async with asyncio.timeout(20):
        while last < publisher.seq:
            publisher.beat()
            item = await anext(items)
            if isinstance(item, Gap):
                gaps += 1
            else:
                last = item.seq
    assert gaps >= 1


async def test_rubbish_is_counted_and_skipped(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    publisher._socket.send(b"\xff\xff\xff not protobuf")
    publisher._socket.send(KvEvents(incarnation="inc-1", seq=1, stored=[b"x" * 65]).SerializeToString())
    publisher._socket.send(KvEvents(incarnation="inc-1", seq=1, stored=[b""]).SerializeToString())
    publisher.publish([b"a"], [])
    item = await next_with_keys(items)
    assert isinstance(item, KvEvents)
    assert list(item.stored) == [b"a"]
    assert subscriber.invalid == 3


async def test_large_changes_are_split(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    items = await joined(publisher, subscriber)
    keys = [i.to_bytes(4, "big") for i in range(100_000)]
    assert publisher.publish(keys, []) == 4
    got: list[bytes] = []
    while len(got) < len(keys):
        item = await next_with_keys(items)
        assert isinstance(item, KvEvents)
        got.extend(item.stored)
    assert got == keys
    assert subscriber.invalid == 0


async def test_addresses_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(FailedPrecondition, match=r"192\.0\.2\.1"):
        Publisher("n", "i", host="192.0.2.1")
    with pytest.raises(FailedPrecondition, match="no bus endpoint"):
        Subscriber("nonsense://x")


def test_the_advertised_name_is_what_others_see() -> None:
    publisher = Publisher("n", "i", host="0.0.0.0", advertise_host="node-7.example")
    assert publisher.endpoint.startswith("tcp://node-7.example:")
    publisher.close()
