"""Defects of our own, put in on purpose: what they cost stays small, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from baton.proto.v1 import inference_pb2 as pb
from baton.router import links
from baton.router.choice import Choice
from tests.fakes import Cluster, StubConfig, StubNode, router_with


def once_broken(inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, but its first call raises."""
    calls: list[None] = []

    def broken(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise ValueError("a defect")
        return inner(*args)

    return broken


async def tokens(cluster: Cluster, **request: Any) -> list[int]:
    call = cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=20, **request), timeout=20)
    return [i async for message in call for i in message.token_ids]


async def test_a_defect_in_one_answers_text_ends_that_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choice, "_look_for_stop", once_broken(Choice._look_for_stop))
    node = StubNode(config=StubConfig(step_s=0.005))
    async with router_with(node) as cluster:
        good = asyncio.create_task(tokens(cluster))
        with pytest.raises(grpc.RpcError) as caught:
            await tokens(cluster, stop=["\x00"])
        assert isinstance(caught.value, grpc.aio.AioRpcError)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert len(await good) == 20
        await cluster.all_idle()
        assert [request.attempt for request in node.received] == [0, 0]


@pytest.mark.parametrize("broken", ["node_events", "codec.request_to_proto"])
async def test_a_defect_in_a_nodes_link_costs_an_attempt(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the node stayed "up" without a stream, or the request on its way for ever."""
    *path, name = broken.split(".")
    owner: Any = links.codec if path else links
    monkeypatch.setattr(owner, name, once_broken(getattr(owner, name)))
    async with router_with(StubNode()) as cluster:
        assert len(await tokens(cluster)) == 20
        await cluster.all_idle()
