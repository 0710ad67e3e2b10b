"""What the router costs: tokens relayed per second of its CPU time, and what it adds to the first token.

The router runs in a process of its own; scripted nodes and 256 client streams run here. Rates are per second
of the measured process's CPU time (all its threads), so that neighbours on the machine do not count: one
core's worth. Beside each stands the goal, and what a bare grpc.aio server does with messages of that size.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop

from baton.bench.report import Figure
from baton.bench.router_child import spell
from baton.bench.stub_node import StubConfig, StubNode
from baton.core.request import Request
from baton.proto.v1 import (
    common_pb2,
    inference_pb2,
    inference_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    prefill_node_pb2,
    prefill_node_pb2_grpc,
)
from baton.runtime import codec
from baton.runtime.grpc_channel import channel

STREAMS = 256
CHANNELS = 4
PACED_STEP_S = 0.06
PACED_TOKENS = 100
FAST_TOKENS = 1000
FIRST_TOKENS = 200
READY_TIMEOUT_S = 20.0
SINGLE_GOAL = 8_000.0
JOINED_GOAL = 20_000.0


@dataclass(slots=True)
class Load:
    """tokens and messages that the clients got; cpu_s: of the measured process; wall_s: of the whole."""

    tokens: int = 0
    messages: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def run() -> list[Figure]:
    """Takes about 20 s."""
    return uvloop.run(_run())


async def _run() -> list[Figure]:
    echo = await _measure_echo()
    single, joined, added_s = await _measure_router()
    echo_rate = echo.messages / echo.cpu_s
    return [
        Figure(
            f"router, {single.messages / single.tokens:.2f} messages per token",
            single.tokens / single.cpu_s,
            "tokens/s per core",
            SINGLE_GOAL,
            f"goal; bare grpc.aio makes {echo_rate:,.0f} messages/s",
            1.0,
        ),
        Figure(
            f"router, streams fall behind, {joined.tokens / joined.messages:.1f} tokens per message",
            joined.tokens / joined.cpu_s,
            "tokens/s per core",
            JOINED_GOAL,
            f"goal; bare grpc.aio makes {echo_rate:,.0f} messages/s",
            1.0,
        ),
        Figure("router, added to TTFT (p50)", added_s * 1e3, "ms", 2.0, "2 ms", 1.0, False),
    ]


async def _measure_echo() -> Load:
    async with _child("echo") as (process, addresses):
        return await _drive(process, addresses["address"], PACED_TOKENS)


async def _measure_router() -> tuple[Load, Load, float]:
    async with _child("router") as (process, addresses):
        node = StubNode("paced", StubConfig(script=spell, step_s=PACED_STEP_S))
        await node.start(addresses["registry"])
        try:
            await _ready(addresses["address"])
            single = await _drive(process, addresses["address"], PACED_TOKENS)
            node.config.step_s = 0.0
            added_s = await _added(addresses["address"], node.address)
        finally:
            await node.stop()
        async with _child("node", addresses["registry"]):
            await _ready(addresses["address"])
            joined = await _drive(process, addresses["address"], FAST_TOKENS)
        return single, joined, added_s


async def _drive(process: psutil.Process, address: str, tokens: int) -> Load:
    """All streams to their end, spread over a few connections."""
    channels = [channel(address) for _ in range(CHANNELS)]
    stubs: list[Any] = [inference_pb2_grpc.InferenceStub(each) for each in channels]
    load = Load()
    request = inference_pb2.GenerateRequest(text="go", max_tokens=tokens)
    before_s, start_s = _cpu_s(process), time.monotonic()
    await asyncio.gather(*(_read(stubs[i % CHANNELS], request, load) for i in range(STREAMS)))
    load.cpu_s, load.wall_s = _cpu_s(process) - before_s, time.monotonic() - start_s
    for each in channels:
        await each.close(None)
    return load


async def _read(stub: Any, request: inference_pb2.GenerateRequest, load: Load) -> None:
    async for message in stub.Generate(request):
        load.tokens += len(message.token_ids)
        load.messages += 1


async def _added(router: str, node: str) -> float:
    """Seconds that the router adds to a first token: median through it less median straight to the node."""
    async with channel(router) as to_router, channel(node) as to_node:
        through = await _first_through(inference_pb2_grpc.InferenceStub(to_router))
        straight = await _first_straight(to_node)
    return max(0.0, through - straight)


async def _first_through(stub: Any) -> float:
    took: list[float] = []
    for _ in range(FIRST_TOKENS):
        start_s = time.monotonic()
        async for _message in stub.Generate(inference_pb2.GenerateRequest(text="go", max_tokens=1)):
            took.append(time.monotonic() - start_s)
    return statistics.median(took)


async def _first_straight(to_node: Any) -> float:
    took: list[float] = []
    stub: Any = node_pb2_grpc.NodeStub(to_node)
    prefill: Any = prefill_node_pb2_grpc.PrefillNodeStub(to_node)
    events = stub.Attach(node_pb2.AttachRequest(router_id="bench"))
    await events.initial_metadata()
    for i in range(FIRST_TOKENS):
        request = codec.request_to_proto(Request(f"r{i}", (100, 101), max_tokens=1))
        target = prefill_node_pb2.DecodeTarget(node_id="stub")
        start_s = time.monotonic()
        await prefill.Prefill(
            prefill_node_pb2.PrefillRequest(router_id="bench", request=request, decode=target)
        )
        await events.read()
        took.append(time.monotonic() - start_s)
    events.cancel()
    return statistics.median(took)


async def _ready(address: str) -> None:
    async with channel(address) as to_router:
        stub: Any = inference_pb2_grpc.InferenceStub(to_router)
        limit = time.monotonic() + READY_TIMEOUT_S
        request = inference_pb2.GenerateRequest(text="go", max_tokens=1, sampling=common_pb2.SamplingParams())
        while True:
            try:
                async for _ in stub.Generate(request):
                    pass
                return
            except Exception:
                if time.monotonic() > limit:
                    raise
                await asyncio.sleep(0.05)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def _child(*what: str) -> AsyncIterator[tuple[psutil.Process, dict[str, str]]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "baton.bench.router_child",
        *what,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await child.stdout.readline()
        yield psutil.Process(child.pid), json.loads(line)
    finally:
        child.stdin.close()
        try:
            async with asyncio.timeout(5.0):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
