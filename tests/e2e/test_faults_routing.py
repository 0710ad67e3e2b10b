"""Roles that change, nodes that drain, registrations that come again: under load, and nobody notices."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from baton.proto.v1.common_pb2 import ROLE_BOTH, ROLE_DECODE, ROLE_PREFILL
from baton.runtime.client.types import Completion
from tests.e2e.cluster import START_S, Cluster, config, running
from tests.e2e.exact import Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import (
    PATIENCE_S,
    RELAYED_HOST,
    TRIES,
    Streaming,
    another,
    drain,
    drained,
    ending,
    met,
    set_role,
    state_is,
    trouble,
    until,
)
from tests.models import Continuation
from tests.ports import free_port
from tests.relay import Relay

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEP_S = 0.01  # where streams are to last
NODES = ("prefill-0", "prefill-1", "decode-0", "decode-1")


@dataclass
class World:
    cluster: Cluster
    registry: Relay
    cases: list[Case]
    short: list[Case]
    streaming: Case
    log: Path
    answers: list[Completion] = field(default_factory=list)  # under load


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("routing")
    model, reference = tiny(folder, max_position_embeddings=4096)
    cases = [solid_case(reference, 5 + i, 30, prefix=[40 + i]) for i in range(10)]
    short = [solid_case(reference, 5 + i, 4, prefix=[80 + i]) for i in range(8)]
    streaming = solid_case(reference, 5, 150)
    port = free_port()
    settings = config(
        model,
        prefill=2,
        decode=2,
        engine={"num_blocks": 4000},
        router={"registry_port": port, "advertise_host": RELAYED_HOST, "max_retries": 10},
        supervise={"max_restarts": 100, "backoff_s": 0.1},
    )
    log = folder / "log"
    async with (
        Relay(f"127.0.0.1:{port}", f"{RELAYED_HOST}:{port}") as registry,
        running(settings, log) as cluster,
    ):
        yield World(cluster, registry, cases, short, streaming, log)


async def under_load(world: World, change: Callable[[], Awaitable[None]], count: int = 8) -> list[Completion]:
    """Keep `count` clients busy while `change` runs; every answer is exact, and nothing is left of any."""
    over = asyncio.Event()
    answers = world.answers
    answers.clear()

    async def client(number: int) -> None:
        draw = random.Random(number)
        while not over.is_set():
            salt = f"{number} {len(answers)}"
            answers.append(await exact(world.cluster, draw.choice(world.cases), salt=salt))

    clients = [asyncio.ensure_future(client(number)) for number in range(count)]
    try:
        await change()
    finally:
        over.set()
        await asyncio.wait_for(asyncio.gather(*clients), 2 * PATIENCE_S)
    await world.cluster.idle(PATIENCE_S)
    return list(answers)


async def _more(world: World, count: int) -> None:
    """Wait until so many more have been answered."""
    wanted = len(world.answers) + count

    async def enough() -> bool:
        return len(world.answers) >= wanted

    await until(enough, what="answered")


async def test_roles_change_under_load(world: World) -> None:
    cluster = world.cluster

    async def change() -> None:
        for _ in range(2):
            for node, role in (
                ("prefill-1", ROLE_BOTH),
                ("decode-1", ROLE_BOTH),
                ("prefill-1", ROLE_DECODE),
                ("decode-1", ROLE_PREFILL),
                ("decode-1", ROLE_BOTH),
                ("prefill-1", ROLE_BOTH),
                ("decode-1", ROLE_DECODE),
                ("prefill-1", ROLE_PREFILL),
            ):
                await set_role(cluster, node, role)
                await _more(world, 24)  # come by in this shape

    answers = await under_load(world, change)
    assert sum(answer.timings.retries for answer in answers) == 0
    decodes = {answer.timings.decode_node for answer in answers}
    prefills = {answer.timings.prefill_node for answer in answers}
    assert "prefill-1" in decodes or "decode-1" in prefills, "no node worked in its new role"


async def test_nodes_drain_under_load(world: World) -> None:
    """What a draining node has is finished there; it gets nothing new; resumed, it takes part again."""
    cluster = world.cluster

    async def change() -> None:
        for node in NODES:
            async with drained(cluster, node):

                async def empty(node: str = node) -> bool:
                    return (await cluster.node(node)).in_flight == 0

                await until(empty, what=f"{node} empty")
                for _ in range(10):
                    assert await empty()
                    await asyncio.sleep(0.02)

    answers = await under_load(world, change)
    assert sum(answer.timings.retries for answer in answers) == 0
    await all_exact(cluster, world.cases, salt="resumed")


async def test_live_streams_stay_counted(world: World) -> None:
    """SCH2: nodes announce themselves again while they stream; that resets no counter and ends none.
    Where newcomers go is the policy's choice, and is left to its own tests."""
    cluster = world.cluster
    undisturbed = await cluster.client.generate(
        world.short[0].prompt, max_tokens=1500, temperature=0.0, ignore_eos=True
    )
    long = Case(world.short[0].prompt, Continuation(list(undisturbed.token_ids), [], 0.0))
    for attempt in range(TRIES):
        with cluster.slowed(STEP_S):
            async with drained(cluster, "decode-1"):
                streams = [Streaming(cluster, long, salt=f"live {attempt} {i}") for i in range(4)]
                before = await _counted(cluster, streams)
            connections = world.registry.connections
            world.registry.cut()
            await until(partial(_connected, world, connections + len(NODES)), what="announced again")
            after = await _counted(cluster, streams)
            await all_exact(cluster, world.cases[:8], salt=f"newcomer {attempt}")
            lasted = not any(stream.over for stream in streams)
        for stream in streams:
            assert (await stream.exact()).timings.retries == 0
        await cluster.up(*NODES)
        await cluster.idle(PATIENCE_S)
        if lasted:
            break
    else:
        raise AssertionError("a stream was always over before the end")
    assert (before, after) == (4, 4)


async def _counted(cluster: Cluster, streams: list[Streaming]) -> int:
    """On the streams' node, when each has some tokens of it."""

    async def some() -> bool:
        return all(stream.tokens >= 3 for stream in streams)

    await met(some, *streams)
    return int((await cluster.node("decode-0")).in_flight)


async def _begun(stream: Streaming) -> bool:
    return stream.tokens > 0


async def _connected(world: World, times: int) -> bool:
    return world.registry.connections >= times


async def test_counters_after_cancels_and_deaths(world: World) -> None:
    """SCH2. The report: 100 cancelled, 20 failed by a worker, 20 normal; here 60, about 10 and 20."""
    cluster, draw = world.cluster, random.Random(3)
    pid = cluster.pid("decode-1")

    async def cancelled() -> None:
        await asyncio.sleep(draw.uniform(0, 1.0))
        stream = cluster.client.stream(draw.choice(world.cases).prompt, max_tokens=30)
        task = asyncio.ensure_future(ending(_read(stream)))
        await asyncio.sleep(draw.uniform(0, 0.1))
        stream.cancel()
        await task

    async def normal() -> Completion:
        await asyncio.sleep(draw.uniform(0, 1.0))
        return await exact(cluster, world.cases[draw.randrange(10)], salt=str(draw.random()))

    async def held(attempt: int) -> list[Streaming]:
        """Streams. decode-1 has some and stands still, else they might be over before the kill."""
        streams = [Streaming(cluster, world.streaming, salt=f"dies {attempt} {i}") for i in range(6)]
        for stream in streams:
            await met(partial(_begun, stream), stream)
        await cluster.hold("decode-1")
        await cluster.caught_up()
        if (await cluster.node("decode-1")).in_flight > 0:
            return streams
        cluster.let_go("decode-1")
        for stream in streams:
            await stream.exact()
        await cluster.up(*NODES)
        return []

    async def death() -> None:
        cluster.kill("decode-1")
        answers = [await stream.exact() for stream in streams]
        assert any(answer.timings.retries for answer in answers), "nothing was on the node"

    for attempt in range(TRIES):
        if streams := await held(attempt):
            break
    else:
        raise AssertionError("decode-1 never had anything")
    await asyncio.gather(death(), *(cancelled() for _ in range(60)), *(normal() for _ in range(20)))
    await another(cluster, "decode-1", pid)
    await cluster.up(*NODES)
    await cluster.idle(PATIENCE_S)
    assert all(node.in_flight == 0 for node in (await cluster.state()).nodes)


async def test_a_drained_node_may_be_stopped(world: World) -> None:
    """The operator's way: drain, wait, stop. Nobody notices."""
    cluster = world.cluster

    async def change() -> None:
        pid = cluster.pid("decode-0")
        await drain(cluster, "decode-0")

        async def empty() -> bool:
            return (await cluster.node("decode-0")).in_flight == 0

        await until(empty, what="empty")
        cluster.signal("decode-0", signal.SIGTERM)
        await another(cluster, "decode-0", pid)
        await state_is(cluster, "decode-0", "up", within_s=START_S)

    answers = await under_load(world, change, count=2)
    assert sum(answer.timings.retries for answer in answers) == 0


async def test_nothing_to_complain_of(world: World) -> None:
    assert trouble(world.log) == []


async def _read(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass
