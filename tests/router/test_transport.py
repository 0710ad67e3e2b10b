"""The hops themselves: keepalive that never counts as abuse, one limit on messages, large ones that fit."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from baton.core.errors import BatonError, InvalidArgument
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.runtime.grpc_channel import TransportOptions, channel
from baton.runtime.grpc_errors import from_rpc_error
from tests.fakes import StubConfig, StubNode, eventually, router_with
from tests.relay import Relay

QUICK = TransportOptions(keepalive_s=0.4, keepalive_timeout_s=0.4)


def stub_of(to_router: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceStub(to_router)


async def test_our_own_pings_are_never_too_many() -> None:
    """Eight ping intervals on an idle connection, and on one with a stream that says nothing."""
    node = StubNode(config=StubConfig(transport=QUICK))
    async with (
        router_with(node, transport=QUICK) as cluster,
        Relay(cluster.app.address) as relay,
        channel(relay.address, QUICK) as idle,
        channel(relay.address, QUICK) as quiet,
    ):
        await stub_of(idle).ListModels(pb.ListModelsRequest())
        node.gate.clear()
        call = stub_of(quiet).Generate(pb.GenerateRequest(text="x", max_tokens=3))
        await asyncio.sleep(8 * QUICK.keepalive_s)
        assert not call.done()
        node.gate.set()
        ids: list[int] = []
        async for message in call:
            ids += message.token_ids
        assert ids == [3, 4, 5]
        await stub_of(idle).ListModels(pb.ListModelsRequest())
        assert relay.connections == 2  # neither was closed and opened again
        (status,) = cluster.app.machine.nodes(cluster.app.driver.now())
        assert status.state == "up"


async def test_a_client_that_pings_too_often_is_cut_off_alone() -> None:
    node = StubNode(config=StubConfig(step_s=0.02))
    slow = TransportOptions(keepalive_s=5.0)
    async with router_with(node, transport=slow) as cluster, Relay(cluster.app.address) as relay:
        good = cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=100))
        options = [
            ("grpc.keepalive_time_ms", 100),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_time_between_pings_ms", 100),
        ]
        async with grpc.aio.insecure_channel(relay.address, options=options) as rude:
            node.gate.clear()
            call = stub_of(rude).Generate(pb.GenerateRequest(text="y", max_tokens=5))
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.wait_for(call.read(), 10)
            assert "pings" in (caught.value.details() or "")
        node.gate.set()
        assert len([i async for m in good for i in m.token_ids]) == 100


async def test_a_peer_that_vanished_is_noticed() -> None:
    node = StubNode()
    async with (
        router_with(node, transport=QUICK) as cluster,
        Relay(cluster.app.address) as relay,
        channel(relay.address, QUICK) as to_router,
    ):
        node.gate.clear()
        call = stub_of(to_router).Generate(pb.GenerateRequest(text="x"))
        await eventually(lambda: node.running)
        relay.black_hole()
        start = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.wait_for(call.read(), 10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - start < 3.0
        node.gate.set()
        await eventually(lambda: not cluster.app.driver.open_requests)  # the router noticed too


async def test_large_messages_within_the_limit_pass_every_hop() -> None:
    config, sent = StubConfig(max_model_len=4_000_000), 0
    async with router_with(StubNode(config=config)) as cluster:
        for request in (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[250] * 2_200_000), max_tokens=1),
            pb.GenerateRequest(text="t" * 3_900_000, max_tokens=1),
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[7] * 3_000),
                max_tokens=1,
                sampling=common.SamplingParams(prompt_logprobs=165),
            ),
        ):
            metadata = (("x-note", "n" * 20_000),)
            sent = max(sent, request.ByteSize())
            (last,) = [m async for m in cluster.inference.Generate(request, timeout=60, metadata=metadata)]
            assert last.usage.completion_tokens == 1
        assert min(sent, last.ByteSize()) > 4 * 2**20  # gRPC's own limit, if it were left alone
        assert len(last.prompt_logprobs) == 2_999


async def test_above_the_limit_the_first_hop_says_so() -> None:
    limit = 100_000
    small = TransportOptions(max_message_bytes=limit)
    node = StubNode(config=StubConfig(max_model_len=4_000_000, transport=small))
    async with router_with(node, transport=small) as cluster, channel(cluster.app.address) as wide:

        async def failure(request: pb.GenerateRequest) -> BatonError:
            with pytest.raises(grpc.RpcError) as caught:
                await stub_of(wide).Generate(request).read()
            return from_rpc_error(caught.value)

        async def taken(request: pb.GenerateRequest) -> int:
            return sum([len(m.token_ids) async for m in stub_of(wide).Generate(request)])

        over = pb.GenerateRequest(text="a" * limit, max_tokens=1)
        error = await failure(over)
        assert isinstance(error, InvalidArgument)
        assert str(limit) in error.message
        # Fits as text; as token ids, two bytes each, it would not fit the next hop.
        grown = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300] * 45_000), max_tokens=10_000)
        error = await failure(grown)
        assert (type(error), error.field) == (InvalidArgument, "prompt")
        assert str(limit) in error.message
        wide_answer = pb.GenerateRequest(
            text="a" * 1000, max_tokens=1, sampling=common.SamplingParams(prompt_logprobs=20)
        )
        error = await failure(wide_answer)
        assert (type(error), error.field) == (InvalidArgument, "prompt_logprobs")
        assert await taken(pb.GenerateRequest(text="a" * (limit // 2), max_tokens=5)) == 5
        assert not [r for r in node.received if len(r.prompt_ids) != limit // 2]
