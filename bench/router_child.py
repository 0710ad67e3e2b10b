"""The other processes of `bench.router`: a router over a byte tokenizer, a bare grpc.aio server, a node that
makes tokens as fast as they are read. Each prints its addresses and serves until its input closes."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import structlog
import uvloop

from baton.bench.byte_tokenizer import ByteTokenizer
from baton.bench.stub_node import StubConfig, StubNode
from baton.core.request import Request
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.router.app import RouterApp, RouterSettings
from baton.runtime.grpc_server import GrpcServer, ServerOptions


class Echo(inference_pb2_grpc.InferenceServicer):
    """Writes messages of a token's size as fast as they go: what the transport alone can do."""

    async def Generate(  # type: ignore[override]  # the stubs know only generators
        self, request: pb.GenerateRequest, context: Any
    ) -> None:
        message = pb.GenerateResponse(index=0, text="a", token_ids=[100])
        for _ in range(request.max_tokens):
            await context.write(message)


def _echo_service() -> Echo:
    return Echo()  # type: ignore[abstract]  # the other methods are not called


def spell(request: Request) -> list[int]:
    """A script of text as models write it: now and then a character of several bytes."""
    text = "Some words, then a few more; \u00e9t\u00e9. ".encode()
    return [3 + text[i % len(text)] for i in range(request.max_tokens)]


async def _until_told() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _router() -> None:
    app = RouterApp(RouterSettings(model="stub"), ByteTokenizer())
    await app.start()
    print(json.dumps({"address": app.address, "registry": app.registry_address}), flush=True)
    await _until_told()
    await app.stop()


async def _echo() -> None:
    server = GrpcServer(ServerOptions())
    server.add("baton.v1.Inference", inference_pb2_grpc.add_InferenceServicer_to_server, _echo_service())
    await server.start()
    print(json.dumps({"address": server.address}), flush=True)
    await _until_told()
    await server.stop()


async def _node(registry: str) -> None:
    node = StubNode("fast", StubConfig(script=spell, step_s=0.0, max_model_len=4_000_000))
    await node.start(registry)
    print(json.dumps({"address": node.address}), flush=True)
    await _until_told()
    await node.stop()


async def _main(what: str, *args: str) -> None:
    if what == "node":
        await _node(*args)
    else:
        await (_echo() if what == "echo" else _router())


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.run(_main(*sys.argv[1:]))
