"""The hops themselves: keepalive that never counts as abuse, peers that vanish. Sizes: test_message_limit."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.runtime.grpc_channel import TransportOptions, channel
from tests.fakes import StubConfig, StubNode, eventually, router_with
from tests.relay import Relay

QUICK = TransportOptions(keepalive_s=0.4, keepalive_timeout_s=0.4)
PATIENT = TransportOptions(keepalive_s=0.4, keepalive_timeout_s=20.0)  # with a machine that is busy
NOTICED_S = 8.0  # less than without the setting


def stub_of(to_router: grpc.aio.Channel) -> Any:
    return inference_pb2_grpc.InferenceStub(to_router)


async def test_our_own_pings_are_never_too_many() -> None:
    """Eight ping intervals on an idle connection, and on one with a stream that says nothing."""
    node = StubNode(config=StubConfig(transport=PATIENT))
    async with (
        router_with(node, transport=PATIENT) as cluster,
        Relay(cluster.app.address) as relay,
        channel(relay.address, PATIENT) as idle,
        channel(relay.address, PATIENT) as quiet,
    ):
        await stub_of(idle).ListModels(pb.ListModelsRequest())
        node.gate.clear()
        call = stub_of(quiet).Generate(pb.GenerateRequest(text="x", max_tokens=3))
        await asyncio.sleep(8 * PATIENT.keepalive_s)
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
                await asyncio.wait_for(call.read(), 40)
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
            await asyncio.wait_for(call.read(), 40)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - start < NOTICED_S
        node.gate.set()
        await eventually(lambda: not cluster.app.driver.open_requests)  # the router noticed too
