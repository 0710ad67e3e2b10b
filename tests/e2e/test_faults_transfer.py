"""A slow, breaking or restarted way between prefill and decode: nobody gets another's KV, nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from baton.core.errors import BatonError, Cancelled
from tests.e2e.cluster import Cluster, config, running
from tests.e2e.exact import Case, exact, solid_case, tiny
from tests.e2e.faults import (
    PATIENCE_S,
    RELAYED_HOST,
    Relays,
    another,
    drain,
    drained,
    ending,
    grpc_relay,
    load_is,
    relays,
    trouble,
    until,
)
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK_BYTES = 4 * 1024  # of 4 tokens
PROMPT, OUTPUT = 18, 6
POOL_BLOCKS = 6  # exactly one request
LATEST_S = 0.4


@dataclass
class World:
    cluster: Cluster
    relays: Relays
    cases: list[Case]
    log: Path
    stack: AsyncExitStack = field(repr=False)

    def delay(self, delay_s: float) -> None:
        """How late KV arrives that is sent from now on."""
        for relay in self.relays.rest:
            relay.up.delay_s = delay_s

    def passed(self) -> int:
        """Bytes of KV that have reached the decode node."""
        return sum(relay.up.passed_bytes for relay in self.relays.rest)

    def taken(self) -> int:
        """Bytes of KV that have left the prefill node."""
        return sum(relay.up.taken_bytes for relay in self.relays.rest)

    async def sent(self, before: int) -> None:
        """Wait until more KV than `before` was sent. It arrives as late as the way is now."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while self.taken() <= before:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)

    async def all_arrived(self, before: int) -> None:
        """Wait until nothing more has come for as long as the longest delay."""
        known = -1
        async with asyncio.timeout(PATIENCE_S):
            while not known == self.passed() > before:
                known = self.passed()
                await asyncio.sleep(LATEST_S + 0.05)

    def restore(self) -> None:
        for relay in self.relays.rest:
            relay.restore()

    async def fresh_relays(self) -> None:
        """A restarted decode node has other ports."""
        await self.stack.aclose()
        self.relays = await self.stack.enter_async_context(relays(self.cluster, "decode-0", self.relays.grpc))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("transfer")
    model, reference = tiny(folder)
    cases = [solid_case(reference, PROMPT, OUTPUT, prefix=[40 + i, 50 + i]) for i in range(8)]
    port = free_port()
    settings = config(
        model,
        prefill=2,
        decode_nodes={
            "port": port,
            "advertise_host": RELAYED_HOST,
            "engine": {"num_blocks": POOL_BLOCKS},
        },
        engine={"chunk_tokens": 4, "max_batch_tokens": 16},
        transfer={"kinds": ("tcp",)},
        supervise={"max_restarts": 100, "backoff_s": 0.1},
    )
    log = folder / "log"
    async with grpc_relay(port) as grpc, running(settings, log) as cluster, AsyncExitStack() as stack:
        between = await stack.enter_async_context(relays(cluster, "decode-0", grpc))
        yield World(cluster, between, cases, log, stack)


async def test_kv_that_comes_late_reaches_nobody_else(world: World) -> None:
    """KV1. The report has 50 repeats at a block a second; here late by 10 to 400 ms, 15 times, and what
    followed is looked at once more when all has arrived."""
    draw = random.Random(1)
    cluster, late = world.cluster, 0
    for name in ("prefill-0", "prefill-1"):
        async with drained(cluster, name):
            await exact(cluster, world.cases[0])
    for round_number in range(15):
        first, second = draw.sample(world.cases, 2)
        salt = str(round_number)  # everything is written anew
        before, taken = world.passed(), world.taken()
        world.delay(draw.choice((0.01, 0.05, 0.2, LATEST_S)))
        await drain(cluster, "prefill-1")
        stream = cluster.client.stream(first.prompt, max_tokens=OUTPUT, ignore_eos=True, salt=salt)
        reading = asyncio.ensure_future(ending(_drained(stream)))
        await world.sent(taken)
        await asyncio.sleep(draw.uniform(0, 0.03))  # somewhere within its chunks
        await drain(cluster, "prefill-1", draining=False)
        await drain(cluster, "prefill-0")  # what follows comes by a connection of its own, and overtakes
        stream.cancel()
        world.delay(0)
        answer = await exact(cluster, second, salt=salt)
        assert answer.timings.prefill_node == "prefill-1"
        await drain(cluster, "prefill-0", draining=False)
        assert answer.timings.retries <= 1
        await reading
        await world.all_arrived(before)
        late += world.passed() - before > PROMPT // 4 * BLOCK_BYTES + BLOCK_BYTES
        again = await exact(cluster, second, salt=salt)
        assert again.timings.transfer_bytes < PROMPT // 4 * BLOCK_BYTES, "decode had forgotten its KV"
        await cluster.idle(PATIENCE_S)
    assert late > 3, "nothing came late"


async def _drained(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize("blocks", [0, 1, 3])
async def test_a_link_that_breaks_is_made_anew(world: World, blocks: int) -> None:
    """After so many blocks of KV the connection is reset: the client does not notice."""
    for relay in world.relays.rest:
        relay.up.left_bytes = blocks * BLOCK_BYTES + 1
    assert await _exact_when_restored(world, world.cases[0], salt=f"cut {blocks}") >= 1
    for case in world.cases[1:4]:
        assert (await exact(world.cluster, case, salt=f"after {blocks}")).timings.retries <= 2
    assert (await exact(world.cluster, world.cases[4], salt=f"after {blocks}")).timings.retries == 0
    await world.cluster.idle(PATIENCE_S)


async def test_a_connection_that_breaks_unused_is_made_anew(world: World) -> None:
    """Nobody has to fail first."""
    await exact(world.cluster, world.cases[0])
    for relay in world.relays.rest:
        relay.cut()
    for case in world.cases[1:4]:
        assert (await exact(world.cluster, case, salt="idle cut")).timings.retries <= 2
    assert (await exact(world.cluster, world.cases[4], salt="idle cut")).timings.retries == 0


async def _exact_when_restored(world: World, case: Case, salt: str) -> int:
    """The network is good again after its first cut. Returns the retries."""
    task = asyncio.ensure_future(exact(world.cluster, case, salt=salt))

    async def cut() -> bool:
        return task.done() or any(relay.up.left_bytes == 0 for relay in world.relays.rest)

    await until(cut, what="cut")
    world.restore()
    return (await task).timings.retries


async def test_a_cancel_when_the_prompt_ends(world: World) -> None:
    """CAN1. The report: 100 cancels in 0.1 ms steps round the prefill's end; here 60 from its start to a
    little beyond, with a lease far longer than the wait allowed for."""
    cluster = world.cluster
    times = [(await exact(cluster, world.cases[1], salt=f"time {i}")).timings for i in range(5)]
    prefill_s = sorted(t.prefill_s + t.queue_s for t in times)[2]
    for i in range(60):
        stream = cluster.client.stream(
            world.cases[i % 8].prompt, max_tokens=OUTPUT, ignore_eos=True, salt=f"end {i}"
        )
        reading = asyncio.ensure_future(ending(_drained(stream)))
        await asyncio.sleep(prefill_s * (0.5 + i / 60))
        stream.cancel()
        ended = await reading
        assert ended is None or isinstance(ended, Cancelled)
    await cluster.idle(3.0)
    await exact(cluster, world.cases[2])


async def test_a_cancel_while_transferring(world: World) -> None:
    """CAN2, state "transferring": decode's blocks come back although the KV never arrives."""
    cluster = world.cluster
    await exact(cluster, world.cases[3])
    for i in range(4):
        for relay in world.relays.rest:
            relay.up.bytes_per_s = 1000.0
            relay.up.swallow = i == 0  # the source waits for the target's word until it takes it for dead
        stream = cluster.client.stream(
            world.cases[3].prompt, max_tokens=OUTPUT, ignore_eos=True, salt=f"hold {i}"
        )
        reading = asyncio.ensure_future(ending(_drained(stream)))
        await load_is(cluster, "decode-0", reserved=1)
        await until(lambda: _exporting(cluster), what="exporting")
        stream.cancel()
        stream.cancel()
        assert isinstance(await reading, Cancelled)
        if i > 0:
            world.restore()
        await cluster.idle(PATIENCE_S)
        world.restore()
        await exact(cluster, world.cases[4])


async def test_a_deadline_while_transferring(world: World) -> None:
    """The same, ended by the deadline; also the nodes' own clocks end it."""
    cluster = world.cluster
    for relay in world.relays.rest:
        relay.up.bytes_per_s = 1000.0
    with pytest.raises(BatonError, match=r"[Dd]eadline"):
        await cluster.client.generate(
            world.cases[5].prompt, max_tokens=OUTPUT, ignore_eos=True, salt="late", timeout_s=0.5
        )
    world.restore()
    await cluster.idle(PATIENCE_S)
    await exact(cluster, world.cases[5])


async def _exporting(cluster: Cluster) -> bool:
    """A prompt is done, and its KV not yet there."""
    return any(node.load.exporting for node in (await cluster.state()).nodes)


async def test_nothing_to_complain_of_so_far(world: World) -> None:
    assert trouble(world.log) == []


async def test_decode_restarted_at_its_port(world: World) -> None:
    """KV5, second part: the same host and port, another process with other memory. One was asked to take a
    request while it was down; prefill is never restarted."""
    cluster = world.cluster
    prefill, decode = [cluster.pid(f"prefill-{i}") for i in (0, 1)], cluster.pid("decode-0")
    address = (await cluster.node("decode-0")).registration.address
    for round_number in range(2):
        cluster.kill("decode-0")
        meanwhile = asyncio.ensure_future(exact(cluster, world.cases[0], salt=f"down {round_number}"))
        await another(cluster, "decode-0", decode)
        decode = cluster.pid("decode-0")
        await cluster.up("decode-0")
        await world.fresh_relays()
        assert (await ending(meanwhile)) is not None
        for case in world.cases[:5]:
            await exact(cluster, case)
        assert (await cluster.node("decode-0")).registration.address == address
        await cluster.idle(PATIENCE_S)
    assert [cluster.pid(f"prefill-{i}") for i in (0, 1)] == prefill
