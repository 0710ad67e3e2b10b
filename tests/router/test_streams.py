"""Streams share one loop: the slow ones get fewer, larger messages and hold nobody up."""

from __future__ import annotations

import asyncio
import time

import pytest

from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.router.pacer import Pacer, Waiter
from baton.runtime.grpc_channel import channel
from tests.fakes import Cluster, StubConfig, StubNode, eventually, router_with


async def test_the_pacer_lets_only_some_write_per_turn_and_forgets_nobody() -> None:
    pacer, waiters = Pacer(writes_per_turn=2), [Waiter() for _ in range(5)]
    order: list[int] = []

    async def stream(i: int) -> None:
        await waiters[i].wait()
        order.append(i)

    tasks = [asyncio.ensure_future(stream(i)) for i in range(5)]
    await asyncio.sleep(0)
    for waiter in (*waiters, waiters[0]):  # saying it twice is saying it once
        pacer.notify(waiter)
    turns = [len(order)]
    while len(order) < 5:
        await asyncio.sleep(0)
        turns.append(len(order))
        assert turns[-1] - turns[-2] <= 2
    assert order == [0, 1, 2, 3, 4]
    await asyncio.gather(*tasks)
    again = asyncio.ensure_future(waiters[0].wait())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_a_turn_that_came_early_is_not_lost() -> None:
    pacer, waiter = Pacer(), Waiter()
    pacer.notify(waiter)
    await asyncio.sleep(0)
    await asyncio.wait_for(waiter.wait(), 20)


async def test_an_idle_router_sends_one_message_per_token() -> None:
    async with router_with(StubNode(config=StubConfig(step_s=0.02))) as cluster:
        request = pb.GenerateRequest(text="x", max_tokens=20)
        sizes = [len(m.token_ids) async for m in cluster.inference.Generate(request)]
        assert sum(sizes) == 20
        assert len(sizes) >= 18


async def test_tokens_that_pile_up_share_messages() -> None:
    """Here writing is what is slow: the node's 32 streams make tokens faster than they can be written."""
    async with router_with(StubNode(config=StubConfig(step_s=0.0))) as cluster:
        request = pb.GenerateRequest(text="x", max_tokens=400)
        messages = 0

        async def one() -> list[int]:
            nonlocal messages
            ids: list[int] = []
            async for message in cluster.inference.Generate(request):
                ids += message.token_ids
                messages += 1
            return ids

        for ids in await asyncio.gather(*(one() for _ in range(32))):
            assert ids == [3 + i % 253 for i in range(400)]
        assert messages < 32 * 400


async def test_a_client_that_does_not_read_disturbs_nobody_and_loses_nothing() -> None:
    node = StubNode(config=StubConfig(step_s=0.0, vocab_size=331, max_model_len=200_000))
    async with router_with(node) as cluster, channel(cluster.app.address) as slow_channel:
        stalled = inference_pb2_grpc.InferenceStub(slow_channel).Generate(
            pb.GenerateRequest(text="x" * 100, max_tokens=20_000, echo=True)
        )
        first = await stalled.read()
        await eventually(lambda: len(node.running) == 1)
        took: list[float] = []
        for _ in range(5):
            start = time.monotonic()
            request = pb.GenerateRequest(text="y", max_tokens=20)
            async for _message in cluster.inference.Generate(request):
                pass
            took.append(time.monotonic() - start)
        assert sorted(took)[2] < 2.0  # a busy machine may hold up one or two
        await eventually(lambda: not node.running, 100.0)  # it never waits for the slow client
        ids = list(first.token_ids)
        while message := await stalled.read():
            ids += message.token_ids
            if message.finish_reason:
                break
        assert ids == [3 + i % 253 for i in range(20_000)]
        await cluster.all_idle()


@pytest.mark.parametrize("size", [20_000, 300_000])
async def test_long_text_is_tokenized_off_the_loop(size: int) -> None:
    """While one client's long prompt is prepared, another's tokens keep coming."""
    node = StubNode(config=StubConfig(step_s=0.005, max_model_len=2**20))
    async with router_with(node) as cluster:
        worst: list[float] = []
        for _ in range(3):  # a busy machine may hold up everything
            gaps: list[float] = []
            reading = asyncio.ensure_future(_steady(cluster, gaps))
            await eventually(lambda gaps=gaps: len(gaps) > 5)
            request = pb.GenerateRequest(text="a" * size, max_tokens=1)
            (last,) = [m async for m in cluster.inference.Generate(request)]
            assert last.usage.prompt_tokens == size
            await reading
            worst.append(max(gaps[1:]))
        assert min(worst) < 1.0


async def _steady(cluster: Cluster, gaps: list[float]) -> None:
    """A stream, and the seconds between its messages as they come."""
    last = time.monotonic()
    async for _ in cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=100)):
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
