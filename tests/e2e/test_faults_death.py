"""Nodes that die, stand still and come back: what they had is done elsewhere, and nobody else suffers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from baton.core.errors import Unavailable
from baton.runtime.client.types import Completion
from tests.e2e.cluster import Cluster, config, running
from tests.e2e.exact import Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import (
    PATIENCE_S,
    Streaming,
    another,
    drained,
    ending,
    healthy,
    load_is,
    state_is,
    trouble,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("prefill-0", "prefill-1", "decode-0", "decode-1")
WIDE = 2048  # of the model's middle layers, so that a step takes as long as one of a real model
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
    model, reference = tiny(folder, max_position_embeddings=1024, intermediate_size=WIDE)
    long = [solid_case(reference, 900, 4, prefix=[40 + i]) for i in range(3)]
    short = [solid_case(reference, 9, 8, prefix=[60 + i]) for i in range(8)]
    streaming = solid_case(reference, 5, 480)
    settings = config(
        model,
        prefill=2,
        decode=2,
        engine={"num_blocks": 800, "chunk_tokens": 1, "max_batch_tokens": 1},  # long prompts take many steps
        router={"lease_s": LEASE_S, "max_retries": 10},
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
            pid = cluster.pid("prefill-0")
            async with drained(cluster, "prefill-1"):
                gone = Streaming(cluster, world.long[0], salt=salt, priority=5)  # computed last
                waiting = asyncio.ensure_future(all_exact(cluster, world.long[1:], salt=salt))
                await _reserved(cluster, 2)  # the third may wait at the router
                cluster.signal("prefill-0", signal.SIGSTOP)
                cluster.kill("prefill-0")
                await gone.cancelled()  # before any other node may take it
            answers = await asyncio.wait_for(waiting, PATIENCE_S)
            assert any(answer.timings.retries for answer in answers), "nothing was in flight"
            assert {a.timings.prefill_node for a in answers if a.timings.retries} == {"prefill-1"}
            await exact(cluster, world.short[1], salt=salt)
            await another(cluster, "prefill-0", pid)
            await cluster.up(*NODES)
            await cluster.idle(PATIENCE_S)
    assert (cluster_pid(world, "decode-0"), cluster_pid(world, "decode-1")) == decodes


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
            async with drained(cluster, "prefill-0"):
                await all_exact(cluster, world.short, salt=salt)
                assert await _quarantined(cluster)
        finally:
            cluster.signal("prefill-0", signal.SIGCONT)
        await cluster.up(*NODES)
        await cluster.idle(PATIENCE_S)
        await all_exact(cluster, world.short, salt=salt)


async def _stopped_in_transfer(cluster: Cluster, case: Case, salt: str) -> Streaming:
    """A request whose prefill node stands still with its hand-off under way; tried until that was met."""
    for attempt in range(50):
        stream = Streaming(cluster, case, salt=f"{salt} {attempt}")
        await _reserved(cluster, 1)
        cluster.signal("prefill-0", signal.SIGSTOP)
        await asyncio.sleep(0.1)  # what was on its way arrives, and is reported
        if sum(node.load.reserved for node in (await cluster.state()).nodes):
            return stream
        cluster.signal("prefill-0", signal.SIGCONT)
        await stream.exact()
        await cluster.idle(PATIENCE_S)
    raise AssertionError("no transfer was met under way")


async def _quarantined(cluster: Cluster) -> bool:
    return any(node.load.quarantined for node in (await cluster.state()).nodes)


async def test_a_decode_node_dies_in_the_middle_of_streams(world: World) -> None:
    """CFG2 a, SCH3: the streams go on elsewhere without gap or repeat; its peers stay healthy."""
    cluster = world.cluster
    seeded = {"max_tokens": 480, "temperature": 1.0, "seed": 5, "ignore_eos": True, "frequency_penalty": 0.5}
    async with drained(cluster, "decode-1"):
        streams = [Streaming(cluster, world.streaming, salt=f"s{i}") for i in range(3)]
        sampled = asyncio.ensure_future(cluster.client.generate(world.streaming.prompt, **seeded))
        for stream in streams:
            await stream.some(7)
        pid, killed_s = cluster.pid("decode-0"), time.monotonic()
        cluster.kill("decode-0")
    async with healthy(cluster, "prefill-0", "prefill-1", "decode-1", "router-0"):
        await state_is(cluster, "decode-0", "lost", within_s=LOST_WITHIN_S)
        answers = [await stream.exact() for stream in streams]
        assert time.monotonic() - killed_s < PATIENCE_S
        assert all(answer.timings.retries >= 1 for answer in answers)
    want = await cluster.client.generate(world.streaming.prompt, **seeded)
    assert (await sampled).token_ids == want.token_ids
    await another(cluster, "decode-0", pid)
    await cluster.up(*NODES)
    await cluster.idle(PATIENCE_S)


@pytest.mark.parametrize("name", ["decode-0", "prefill-0"])
async def test_a_node_that_stands_still(world: World, name: str) -> None:
    """CFG2 b: out of rotation within its lease, its requests done elsewhere; back when it goes on."""
    cluster, role = world.cluster, name.partition("-")[0]
    other, pid = f"{role}-1", cluster.pid(name)
    cases = [world.streaming] * 2 if role == "decode" else world.long[1:]
    async with drained(cluster, other):
        held = [Streaming(cluster, case, salt=f"{name} {i}") for i, case in enumerate(cases)]
        if role == "decode":
            for stream in held:
                await stream.some(3)
        else:
            await load_is(cluster, name, running=1)
        cluster.signal(name, signal.SIGSTOP)
        there = (await cluster.node(name)).in_flight
    try:
        stopped_s = time.monotonic()
        await asyncio.sleep(0.2)  # what was on its way arrives; the lease is longer
        caught = [stream for stream in held if not stream.over]
        assert caught, "all were done before the node stood still"
        await state_is(cluster, name, "suspect", "lost", within_s=LOST_WITHIN_S)
        for case in world.short:
            answer = await exact(cluster, case, salt=name)
            assert other in (answer.timings.prefill_node, answer.timings.decode_node)
        await state_is(cluster, name, "lost", within_s=LOST_WITHIN_S)
        assert time.monotonic() - stopped_s < 2 * LOST_WITHIN_S
        retries = [(await stream.exact()).timings.retries for stream in held]
        if role == "decode":
            assert retries == [int(stream in caught) for stream in held]
        else:  # who waited at the router, not at the node, goes elsewhere the first time
            assert 1 <= there <= sum(retries)
            assert max(retries) == 1
    finally:
        cluster.signal(name, signal.SIGCONT)
    await cluster.up(*NODES)
    assert cluster.pid(name) == pid
    await all_exact(cluster, world.short, salt=f"after {name}")
    await cluster.idle(PATIENCE_S)


async def test_all_decode_nodes_die(world: World) -> None:
    """CFG2 g: prefill stays healthy, a patient request is answered, and so is all that comes later."""
    cluster = world.cluster
    pids = {name: cluster.pid(name) for name in ("decode-0", "decode-1")}
    async with healthy(cluster, "prefill-0", "prefill-1"):
        held = asyncio.ensure_future(exact(cluster, world.streaming, salt="all"))
        await asyncio.sleep(0.1)
        for name in pids:
            cluster.kill(name)
        for name in pids:
            await state_is(cluster, name, "lost")
        for name, pid in pids.items():
            await another(cluster, name, pid)
        await cluster.up(*NODES)
    answer = await ending(held)  # exact, or honestly refused where the restart took longer than it may wait
    assert isinstance(answer, Completion | Unavailable)
    await all_exact(cluster, world.short, salt="all")
    await cluster.idle(PATIENCE_S)


async def test_no_node_complained_of_its_peers(world: World) -> None:
    assert trouble(world.log) == []


def cluster_pid(world: World, name: str) -> int:
    return world.cluster.pid(name)


async def _reserved(cluster: Cluster, least: int) -> None:
    """Wait until so many hand-offs have been granted or wait, over all decode nodes."""

    async def enough() -> bool:
        state = await cluster.state()
        return sum(node.load.reserved for node in state.nodes) >= least

    await until(enough, what="hand-offs under way")
