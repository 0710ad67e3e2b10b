"""Nodes that die, stand still and come back: what they had is done elsewhere, and nobody else suffers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from baton.core.errors import Unavailable
from baton.runtime.client.types import Completion
from tests.e2e.cluster import ALL_AT_ONCE, Cluster, config, running
from tests.e2e.exact import Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import (
    PATIENCE_S,
    TRIES,
    Streaming,
    drain,
    drained,
    ending,
    healthy,
    lost,
    met,
    reported,
    state_is,
    trouble,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("prefill-0", "prefill-1", "decode-0", "decode-1")
STEP_S = 0.02  # where work is not to be over before it was looked at
LEASE_S = 3.0
LOST_WITHIN_S = 2 * LEASE_S + 4.0  # two leases, and what a busy machine takes


@dataclass
class World:
    cluster: Cluster
    long: list[Case]
    short: list[Case]
    streaming: Case
    log: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("death")
    model, reference = tiny(folder)
    long = [solid_case(reference, 300, 4, prefix=[40 + i]) for i in range(3)]
    short = [solid_case(reference, 9, 8, prefix=[60 + i]) for i in range(8)]
    streaming = solid_case(reference, 5, 150)
    settings = config(
        model,
        prefill=2,
        decode=2,
        engine={"num_blocks": 800, "chunk_tokens": 1, "max_batch_tokens": 1},  # long prompts take many steps
        router={"lease_s": LEASE_S, "max_retries": 10} | ALL_AT_ONCE,
        supervise={"max_restarts": 100, "backoff_s": 0.1},
    )
    log = folder / "log"
    async with running(settings, log) as cluster:
        yield World(cluster, long, short, streaming, log)


async def test_a_prefill_node_dies_with_kv_in_flight(world: World) -> None:
    """LIFE1. The report has 30 rounds, here 3. Stopped first, so that its KV is in flight for sure."""
    cluster, decodes = world.cluster, (cluster_pid(world, "decode-0"), cluster_pid(world, "decode-1"))
    await exact(cluster, world.short[0])
    async with healthy(cluster, "decode-0", "decode-1", "router-0"):
        for round_number in range(3):
            salt = f"round {round_number}"
            answers = await _killed_in_flight(world, salt)
            assert {a.timings.prefill_node for a in answers if a.timings.retries} == {"prefill-1"}
            await exact(cluster, world.short[1], salt=salt)
            await cluster.up(*NODES)
            await cluster.idle(PATIENCE_S)
    assert (cluster_pid(world, "decode-0"), cluster_pid(world, "decode-1")) == decodes


async def _killed_in_flight(world: World, salt: str) -> list[Completion]:
    """Answers of which some had their KV in flight when their prefill node died; tried until that was so."""
    cluster = world.cluster
    for attempt in range(TRIES):
        async with drained(cluster, "prefill-1"):
            gone = Streaming(cluster, world.long[0], salt=f"{salt} {attempt}", priority=5)  # computed last
            asked = [
                asyncio.ensure_future(exact(cluster, case, salt=f"{salt} {attempt}"))
                for case in world.long[1:]
            ]
            with cluster.slowed(STEP_S):
                seen = await met(lambda: _reserved(cluster, len(world.long)), gone, *asked)
                await cluster.hold("prefill-0")
            await cluster.caught_up()
            over = gone.over
            cluster.kill("prefill-0")
            if not over:
                await gone.cancelled()  # before any other node may take it
        answers = [await asyncio.wait_for(one, 2 * PATIENCE_S) for one in asked]
        if seen and not over and any(answer.timings.retries for answer in answers):
            return answers
        await cluster.up(*NODES)
    raise AssertionError("nothing was in flight")


async def test_a_writer_that_stands_still_is_not_trusted(world: World) -> None:
    """KV1 in shared memory, where nobody can stop a writer: what it may still write to stays out of use, and
    comes back when it has said that it is over."""
    cluster = world.cluster
    for round_number in range(3):
        salt = f"still {round_number}"
        async with drained(cluster, "prefill-1"):
            gone = await _stopped_in_transfer(cluster, world.long[0], salt)
        try:
            await gone.cancelled()
            await until(lambda: _quarantined(cluster), what="quarantined")
            await drain(cluster, "prefill-0")
            await all_exact(cluster, world.short, salt=salt)
            assert await _quarantined(cluster)
        finally:
            cluster.let_go("prefill-0")
            await drain(cluster, "prefill-0", draining=False)
        await cluster.up(*NODES)
        await cluster.idle(PATIENCE_S)
        await all_exact(cluster, world.short, salt=salt)


async def _stopped_in_transfer(cluster: Cluster, case: Case, salt: str) -> Streaming:
    """A request whose prefill node stands still with its hand-off under way; tried until that was met."""
    for attempt in range(TRIES):
        with cluster.slowed(STEP_S):
            stream = Streaming(cluster, case, salt=f"{salt} {attempt}")
            seen = await met(lambda: _reserved(cluster, 1), stream)
            await cluster.hold("prefill-0")
        await reported(cluster, "decode-0", "decode-1")  # what was on its way has arrived
        if seen and await _reserved(cluster, 1):
            return stream
        cluster.let_go("prefill-0")
        await stream.exact()
        await cluster.idle(PATIENCE_S)
    raise AssertionError("no transfer was met under way")


async def _quarantined(cluster: Cluster) -> bool:
    return any(node.load.quarantined for node in (await cluster.state()).nodes)


async def test_a_decode_node_dies_in_the_middle_of_streams(world: World) -> None:
    """CFG2 a, SCH3: the streams go on elsewhere without gap or repeat; its peers stay healthy."""
    cluster = world.cluster
    seeded = {"max_tokens": 150, "temperature": 1.0, "seed": 5, "ignore_eos": True, "frequency_penalty": 0.5}
    for attempt in range(TRIES):
        async with drained(cluster, "decode-1"):
            streams = [Streaming(cluster, world.streaming, salt=f"s{attempt} {i}") for i in range(3)]
            sampled = asyncio.ensure_future(cluster.client.generate(world.streaming.prompt, **seeded))
            with cluster.slowed(STEP_S):
                await met(partial(_have, streams, 7), *streams)
                await cluster.hold("decode-0")
            await cluster.caught_up()
            caught = (await cluster.node("decode-0")).in_flight == len(streams) + 1
            pid, killed_s = cluster.pid("decode-0"), time.monotonic()
            cluster.kill("decode-0")
        async with healthy(cluster, "prefill-0", "prefill-1", "decode-1", "router-0"):
            await lost(cluster, "decode-0", pid)
            answers = [await stream.exact() for stream in streams]
            assert time.monotonic() - killed_s < 2 * PATIENCE_S
        want = await cluster.client.generate(world.streaming.prompt, **seeded)
        assert (await sampled).token_ids == want.token_ids
        await cluster.up(*NODES)
        if caught:
            break
    else:
        raise AssertionError("a stream was over before every kill")
    assert all(answer.timings.retries >= 1 for answer in answers)
    await cluster.idle(PATIENCE_S)


async def _have(streams: list[Streaming], tokens: int) -> bool:
    return all(stream.tokens >= tokens for stream in streams)


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
async def test_a_node_that_stands_still(world: World, name: str) -> None:
    """CFG2 b: out of rotation within its lease, its requests done elsewhere; back when it goes on."""
    cluster, role = world.cluster, name.partition("-")[0]
    other, pid = f"{role}-1", cluster.pid(name)
    cases = [world.streaming] * 2 if role == "decode" else world.long[1:]
    for attempt in range(TRIES):
        async with drained(cluster, other):
            held = [Streaming(cluster, case, salt=f"{name} {attempt} {i}") for i, case in enumerate(cases)]
            with cluster.slowed(STEP_S):
                await met(partial(_computes, cluster, name, held), *held)
                await cluster.hold(name)
            await cluster.caught_up()
            there = (await cluster.node(name)).in_flight
        if there:
            break
        cluster.let_go(name)
        await cluster.up(*NODES)
    try:
        assert there, "all were done before the node stood still"
        await state_is(cluster, name, "suspect", "lost", within_s=LOST_WITHIN_S)
        for case in world.short:
            answer = await exact(cluster, case, salt=name)
            assert other in (answer.timings.prefill_node, answer.timings.decode_node)
        await state_is(cluster, name, "lost", within_s=LOST_WITHIN_S)
        retries = [(await stream.exact()).timings.retries for stream in held]
        assert max(retries) == 1
        assert sum(retries) == there  # who waited at the router goes elsewhere the first time
    finally:
        cluster.let_go(name)
    await cluster.up(*NODES)
    assert cluster.pid(name) == pid
    await all_exact(cluster, world.short, salt=f"after {name}")
    await cluster.idle(PATIENCE_S)


async def _computes(cluster: Cluster, name: str, held: list[Streaming]) -> bool:
    """All held answers come from this decode node, or this prefill node is at one of their prompts."""
    if name.startswith("decode"):
        return await _have(held, 3)
    return bool((await cluster.node(name)).load.running)


async def test_all_decode_nodes_die(world: World) -> None:
    """CFG2 g: prefill stays healthy, a patient request is answered, and so is all that comes later."""
    cluster = world.cluster
    pids = {name: cluster.pid(name) for name in ("decode-0", "decode-1")}
    async with healthy(cluster, "prefill-0", "prefill-1"):
        with cluster.slowed(STEP_S):  # it is not over before
            held = asyncio.ensure_future(exact(cluster, world.streaming, salt="all"))
            await until(lambda: _on_decode(cluster), what="on a decode node")
            for name in pids:
                cluster.kill(name)
        await asyncio.gather(*(lost(cluster, name, pid) for name, pid in pids.items()))
        await cluster.up(*NODES)
    answer = await ending(held)  # exact, or honestly refused where the restart took longer than it may wait
    assert isinstance(answer, Completion | Unavailable)
    await all_exact(cluster, world.short, salt="all")
    await cluster.idle(PATIENCE_S)


async def _on_decode(cluster: Cluster) -> bool:
    state = await cluster.state()
    return any(n.load.running for n in state.nodes if n.registration.node_id.startswith("decode"))


async def test_no_node_complained_of_its_peers(world: World) -> None:
    assert trouble(world.log) == []


def cluster_pid(world: World, name: str) -> int:
    return world.cluster.pid(name)


async def _reserved(cluster: Cluster, least: int) -> bool:
    """Whether so many hand-offs have been granted or wait, over all decode nodes."""
    state = await cluster.state()
    return sum(node.load.reserved for node in state.nodes) >= least
