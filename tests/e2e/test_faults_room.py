"""Pools that are too small for all: those that fit take turns, those that never can are told so at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from baton.core.errors import InvalidArgument
from baton.core.request import FinishReason
from tests.e2e.cluster import Cluster, config, running
from tests.e2e.exact import Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import PATIENCE_S, TRIES, Streaming, met, trouble, until
from tests.models import Reference, prompt_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

PREFILL_BLOCKS, DECODE_BLOCKS = 40, 24
CONTEXT = 4 * DECODE_BLOCKS  # tokens that fit into the smaller pool
STEP_S = 0.02  # where answers are not to be over before they were looked at
CANARY_S = 5.0  # 2 on an idle machine


@dataclass
class World:
    cluster: Cluster
    reference: Reference
    canary: Case
    log: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("room")
    model, reference = tiny(folder)
    settings = config(
        model,
        prefill_nodes={"engine": {"num_blocks": PREFILL_BLOCKS}},
        decode_nodes={"engine": {"num_blocks": DECODE_BLOCKS}},
        engine={"chunk_tokens": 16, "max_batch_tokens": 16, "max_running": 4},
    )
    canary = solid_case(reference, 4, 8)
    log = folder / "log"
    async with running(settings, log) as cluster:
        await exact(cluster, canary)
        yield World(cluster, reference, canary, log)


async def canary_sings(world: World) -> None:
    started_s = time.monotonic()
    await exact(world.cluster, world.canary)
    assert time.monotonic() - started_s < CANARY_S
    await world.cluster.idle(PATIENCE_S)


@pytest.mark.parametrize("count", [2, 6])
async def test_decode_runs_out_of_blocks(world: World, count: int) -> None:
    """LIFE3: each needs 20 blocks of 24 at its end. Who gives way is computed anew, and nobody notices."""
    cases = [solid_case(world.reference, 16, 64, prefix=[40 + i]) for i in range(count)]
    preemptions = 0
    for attempt in range(TRIES):  # on a busy machine one may be done before the next comes
        with world.cluster.slowed(STEP_S):
            answers = await all_exact(world.cluster, cases, salt=f"{count} {attempt}")
        assert all(answer.timings.retries == 0 for answer in answers)
        preemptions += sum(answer.timings.preemptions for answer in answers)
        if preemptions:
            break
    assert preemptions >= 1, "there was room for all"
    await canary_sings(world)


async def test_a_cancel_of_a_preempted_one(world: World) -> None:
    """CAN2, states "preempted" and "waiting at decode": nothing of it is computed again. Decode is held from
    when somebody was seen to wait until all others are cancelled."""
    cluster = world.cluster
    cases = [solid_case(world.reference, 16, 64, prefix=[60 + i]) for i in range(5)]
    for round_number in range(3):
        held = await _held_where_some_wait(cluster, cases, salt=f"round {round_number}")
        await asyncio.gather(*(stream.cancelled() for stream in held[1:]))
        cluster.let_go("decode-0")
        await held[0].exact()
        await cluster.idle(PATIENCE_S)


async def _held_where_some_wait(cluster: Cluster, cases: list[Case], salt: str) -> list[Streaming]:
    """Answers of which none is over, at a decode node that has no room for all and stands still."""

    async def waits() -> bool:
        load = (await cluster.node("decode-0")).load
        return load.waiting + load.reserved > 0

    for attempt in range(TRIES):
        await cluster.hold("decode-0")  # so that they come to it together
        held = [Streaming(cluster, case, salt=f"{salt} {attempt} {i}") for i, case in enumerate(cases)]
        await until(lambda: _under_way(cluster, len(cases)), what="sent")
        with cluster.slowed(STEP_S):
            cluster.let_go("decode-0")
            seen = await met(waits, *held)
            await cluster.hold("decode-0")
        await cluster.caught_up()
        if seen and await waits() and await _under_way(cluster, len(cases)):
            return held
        cluster.let_go("decode-0")
        for stream in held:
            await stream.exact()
        await cluster.idle(PATIENCE_S)
    raise AssertionError("nobody was met waiting")


async def _under_way(cluster: Cluster, count: int) -> bool:
    """The router has so many requests, of which none is over."""
    state = await cluster.state()
    return bool(state.in_flight + state.queued == count)


async def test_what_fits_the_context_but_no_pool(world: World) -> None:
    """SCH1. The limit is what a pool can hold, clients are told the number, and nothing loops."""
    cluster = world.cluster
    (model,) = await cluster.client.models()
    assert model.max_model_len == CONTEXT
    with pytest.raises(InvalidArgument, match=str(CONTEXT)):
        await cluster.client.generate(prompt_of(CONTEXT + 4), max_tokens=4)
    await canary_sings(world)
    near = await cluster.client.generate(prompt_of(60), max_tokens=60, temperature=0.0, ignore_eos=True)
    assert near.finish_reason is FinishReason.LENGTH
    assert near.usage.completion_tokens == CONTEXT - 60
    await canary_sings(world)
    two = [solid_case(world.reference, 36, 40, prefix=[40 + i]) for i in range(2)]
    answers = await all_exact(cluster, two)
    assert sum(answer.timings.preemptions for answer in answers) <= 4
    await canary_sings(world)


async def test_a_long_prompt_stops_no_short_ones(world: World) -> None:
    """SCH5 a, b: behind one that fills most of the pool small ones go on; and the large one is not starved
    by an endless row of small ones (e)."""
    cluster = world.cluster
    large = solid_case(world.reference, 88, 4)
    small = [solid_case(world.reference, 4, 6, prefix=[40 + i]) for i in range(8)]
    over = asyncio.Event()

    async def endless(case: Case) -> int:
        count = 0
        while not over.is_set():
            await exact(cluster, case)
            count += 1
        return count

    rows = [asyncio.ensure_future(endless(case)) for case in small]
    for i in range(3):
        await asyncio.wait_for(exact(cluster, large, salt=str(i)), PATIENCE_S)
    over.set()
    assert min(await asyncio.gather(*rows)) >= 1
    await canary_sings(world)


async def test_priority_goes_first(world: World) -> None:
    """SCH5 c: all slots taken by long ones of low priority; a high one starts before they have ended. It
    comes while decode is held, and what counts is the order of the ends."""
    cluster = world.cluster
    low = [solid_case(world.reference, 5, 80, prefix=[40 + i]) for i in range(6)]
    for attempt in range(TRIES):
        with cluster.slowed(STEP_S):
            held = [
                Streaming(cluster, case, salt=f"low {attempt} {i}", priority=5) for i, case in enumerate(low)
            ]
            seen = await met(lambda: _running(cluster), *held)
            await cluster.hold("decode-0")
        await cluster.caught_up()
        if seen and await _under_way(cluster, len(low)):
            break
        cluster.let_go("decode-0")
        for stream in held:
            await stream.exact()
    else:
        raise AssertionError("they were never met running")
    ends: list[Streaming] = []
    high = Streaming(cluster, world.canary, salt="high", priority=-5)
    for stream in (*held, high):
        stream.at_end(ends.append)
    await until(lambda: _under_way(cluster, len(low) + 1), what="sent")
    cluster.let_go("decode-0")
    for stream in (*held, high):
        await stream.exact()
    assert ends.index(high) < len(low)
    await cluster.idle(PATIENCE_S)


async def _running(cluster: Cluster) -> bool:
    return bool((await cluster.node("decode-0")).load.running)


async def test_nothing_to_complain_of(world: World) -> None:
    assert trouble(world.log) == []
