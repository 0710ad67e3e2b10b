"""The second turn of a conversation meets a node without its KV, in real processes, as the policy has it.

The KV is fetched; or, when its holder or the node itself dies in the middle, computed. The answer is always
the same.
"""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.engine.weights.locate import locate
from baton.router.text.load import load_tokenizer
from baton.runtime.client.types import Completion
from tests.e2e.cluster import START_S, Cluster, config, running
from tests.e2e.faults import (
    PATIENCE_S,
    RELAYED_HOST,
    Relays,
    another,
    drain,
    drained,
    grpc_relay,
    load_is,
    relays,
    state_is,
    until,
)
from tests.ports import free_port

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

BLOCK, NEW_TOKENS = 16, 24
ASKER, HOLDER = "both-0", "decode-0"
TEXT = "".join(f"Lap {n} took {60 + n} seconds, and after lap {n} comes lap {n + 1}.\n" for n in range(1, 60))
SLOW_BYTES_S = 4e6
LITTLE_BYTES = 100_000


@dataclass
class World:
    cluster: Cluster
    relays: Relays
    prompt: list[int]

    def passed(self) -> int:
        """Bytes of KV that have reached the node that asked for it."""
        return sum(relay.up.passed_bytes for relay in self.relays.rest)

    async def metric(self, node: str, name: str) -> float:
        ready = self.cluster.member(node).ready
        assert ready is not None

        def read() -> float:
            with urllib.request.urlopen(f"http://{ready.metrics}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
            return sum(map(float, found))

        return await asyncio.to_thread(read)

    async def first(self, salt: str) -> list[int]:
        """The first turn, at the pair of prefill-0 and decode-0; returns what the second one begins with."""
        await drain(self.cluster, ASKER)
        await state_is(self.cluster, ASKER, "draining")
        answer = await self.generate(self.prompt, salt)
        await drain(self.cluster, ASKER, draining=False)
        await state_is(self.cluster, ASKER, "up")
        assert (answer.timings.prefill_node, answer.timings.decode_node) == ("prefill-0", HOLDER)
        return [*self.prompt, *answer.token_ids, *self.prompt[:7]]

    async def generate(self, prompt: list[int], salt: str) -> Completion:
        options: dict[str, Any] = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True}
        return await self.cluster.client.generate(prompt, salt=salt, logprobs=0, timeout_s=120, **options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    torch.set_num_threads(1)
    port = free_port()
    settings = config(
        "demo",
        both=1,
        both_nodes={"port": port, "advertise_host": RELAYED_HOST},
        engine={
            "block_size": BLOCK,
            "num_blocks": 256,
            "chunk_tokens": 16,
            "max_batch_tokens": 16,
            "kv_dtype": "int8",
        },
        transfer={"kinds": ("tcp",)},
        router={"max_retries": 10, "lease_s": 3.0},
        supervise={"max_restarts": 100, "backoff_s": 0.1},
    )
    prompt = list(load_tokenizer(str(locate("demo"))).encode(TEXT))[:600]
    async with AsyncExitStack() as stack:
        grpc = await stack.enter_async_context(grpc_relay(port))
        cluster = await stack.enter_async_context(running(settings))
        world = World(cluster, await stack.enter_async_context(relays(cluster, ASKER, grpc)), prompt)
        async with drained(cluster, "prefill-0"):  # so that it is known how slowly prompts are computed
            await world.generate(prompt, "measured")
        yield world


@asynccontextmanager
async def second_turn(world: World, salt: str) -> AsyncIterator[tuple[list[int], asyncio.Task[Completion]]]:
    """Asked of the node that lacks it: the prefill node takes nothing new."""
    prompt = await world.first(salt)
    async with drained(world.cluster, "prefill-0"):
        yield prompt, asyncio.ensure_future(world.generate(prompt, salt))


async def computed(world: World, prompt: list[int], salt: str) -> Completion:
    """What it must be: of another tenant, so that nothing of it is cached anywhere."""
    answer = await world.generate(prompt, f"{salt}, computed")
    assert answer.usage.cached_tokens == 0
    return answer


@asynccontextmanager
async def slow(world: World) -> AsyncIterator[None]:
    """Meanwhile KV for the node that asks comes so slowly that it would take seconds."""
    for relay in world.relays.rest:
        relay.up.bytes_per_s = SLOW_BYTES_S
    yield
    for relay in world.relays.rest:
        relay.up.bytes_per_s = None


async def on_its_way(world: World, before: int) -> None:
    """Some of the KV has come."""

    async def some() -> bool:
        return world.passed() > before + LITTLE_BYTES

    await until(some, what="KV on its way")


def same(one: Completion, other: Completion) -> None:
    assert one.token_ids == other.token_ids
    assert [p.logprob for p in one.logprobs] == [p.logprob for p in other.logprobs]


async def test_the_second_turn_is_fetched(world: World) -> None:
    before = await world.metric(ASKER, "baton_fetched_tokens_total")
    async with second_turn(world, "fetched") as (prompt, asking):
        answer = await asking
        known = (len(world.prompt) + NEW_TOKENS - 1) // BLOCK * BLOCK
        assert answer.timings.prefill_node == ASKER
        assert answer.usage.cached_tokens == known
        assert await world.metric(ASKER, "baton_fetched_tokens_total") - before == known
        assert await world.metric(HOLDER, "baton_lent_tokens_total") == known
        same(answer, await computed(world, prompt, "fetched"))
    await world.cluster.idle(PATIENCE_S)


async def test_a_holder_that_is_killed_in_the_middle_costs_time_alone(world: World) -> None:
    """And, where the answer was to be made there, another attempt."""
    fetched = await world.metric(ASKER, "baton_fetched_tokens_total")
    before, pid = world.passed(), world.cluster.pid(HOLDER)
    async with second_turn(world, "killed holder") as (prompt, asking), slow(world):
        await on_its_way(world, before)
        world.cluster.kill(HOLDER)
        answer = await asking
        assert await world.metric(ASKER, "baton_fetched_tokens_total") == fetched
        same(answer, await computed(world, prompt, "killed holder"))
    await another(world.cluster, HOLDER, pid)
    await state_is(world.cluster, HOLDER, "up", within_s=START_S)
    await world.cluster.idle(PATIENCE_S)


async def test_an_asker_that_is_killed_in_the_middle_leaves_nothing_at_the_holder(world: World) -> None:
    before, pid = world.passed(), world.cluster.pid(ASKER)
    async with slow(world):
        async with second_turn(world, "killed asker") as (prompt, asking):
            await on_its_way(world, before)
            await load_is(world.cluster, HOLDER, exporting=1)
            world.cluster.kill(ASKER)
        answer = await asking
    assert answer.timings.retries >= 1
    same(answer, await computed(world, prompt, "killed asker"))
    await another(world.cluster, ASKER, pid)
    await state_is(world.cluster, ASKER, "up", within_s=START_S)
    await world.cluster.idle(PATIENCE_S)


async def test_a_holder_that_stands_still_costs_a_bounded_time(world: World) -> None:
    """Nothing breaks: the prompt just waits no longer than its computation takes."""
    cluster, salt = world.cluster, "stopped holder"
    prompt = await world.first(salt)
    fetched = await world.metric(ASKER, "baton_fetched_tokens_total")
    async with drained(cluster, "prefill-0"):
        cluster.signal(HOLDER, signal.SIGSTOP)
        answer = await world.generate(prompt, salt)
        cluster.signal(HOLDER, signal.SIGCONT)
        assert await world.metric(ASKER, "baton_fetched_tokens_total") == fetched
        same(answer, await computed(world, prompt, salt))
    await state_is(cluster, HOLDER, "up")
    await cluster.idle(PATIENCE_S)
