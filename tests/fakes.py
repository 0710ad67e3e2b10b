"""Stand-ins that speak the real protocol: a scripted node, a byte tokenizer, a whole router round them.

async with router_with(StubNode(...)) as cluster:
    async for message in cluster.inference.Generate(pb.GenerateRequest(text="hi")): ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from baton.bench.byte_tokenizer import ByteTokenizer
from baton.bench.stub_node import PEERS, Running, StubConfig, StubNode, count_up
from baton.proto.v1 import admin_pb2_grpc, inference_pb2_grpc
from baton.router.app import RouterApp, RouterSettings
from baton.router.machine_config import RouterConfig
from baton.runtime.grpc_channel import channel
from tests.patience import Patience

__all__ = [
    "PEERS",
    "ByteTokenizer",
    "Cluster",
    "Running",
    "StubConfig",
    "StubNode",
    "count_up",
    "eventually",
    "router_with",
    "spell",
]


def spell(text: str) -> list[int]:
    """Token ids of a text, one per byte: for scripts."""
    return ByteTokenizer().encode(text)


@dataclass
class Cluster:
    app: RouterApp
    nodes: tuple[StubNode, ...]
    channel: grpc.aio.Channel
    inference: Any
    admin: Any

    async def all_idle(self, within_s: float = 2.0) -> None:
        """Every request has left router and nodes."""
        machine = self.app.machine

        def idle() -> bool:
            counts = [machine.node_in_flight(node.node_id) for node in self.nodes]
            running = [len(node.running) for node in self.nodes]
            assert min(counts, default=0) >= 0
            return not any((*counts, *running, machine.queued, self.app.driver.open_requests))

        await eventually(idle, within_s)
        machine.check()


async def eventually(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Until `condition()` is true; AssertionError when it is not within the time."""
    patience = Patience(within_s)
    while not condition():
        assert patience.lasts(), f"still not so after {within_s} s"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def router_with(*nodes: StubNode, **settings: Any) -> AsyncIterator[Cluster]:
    """A router on ports of its own with these nodes joined."""
    settings.setdefault("machine", RouterConfig())
    app = RouterApp(RouterSettings(model="stub", **settings), ByteTokenizer())
    await app.start()
    to_router = channel(app.address, app.settings.transport)
    cluster = Cluster(
        app,
        nodes,
        to_router,
        inference_pb2_grpc.InferenceStub(to_router),
        admin_pb2_grpc.AdminStub(to_router),
    )
    try:
        for node in nodes:
            await node.start(app.registry_address)
        await eventually(lambda: len(app.membership.members) == len(nodes))
        if nodes:
            await eventually(lambda: app.ready)
        yield cluster
    finally:
        await to_router.close()
        await app.stop()
        for node in nodes:
            await node.stop()
