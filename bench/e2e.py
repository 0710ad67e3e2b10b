"""The whole deployment, 1P1D with the demo model: time to first token, readiness, memory.

The first token through router and prefill node is compared with the same prompt in one process that does
nothing but prefill, with as many threads, the two taken in turn: what is above 1 is what serving costs.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

import psutil
import torch

from baton.bench.report import Figure
from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.engine.torch_runner import TorchRunner
from baton.runtime.client.aio import AsyncClient
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import Launcher

PROMPT_TOKENS = 512
ROUNDS = 7
READY_S = 15.0
NODE_BYTES = 256 * 2**20  # Python, torch, buffers: a node with the demo model, in any format
SOAK_REQUESTS = 2000
SOAK_WARMUP = 400
SOAK_PARALLEL = 16
BLOCK_SIZE = 16
NUM_BLOCKS = 256


def run() -> list[Figure]:
    torch.set_num_threads(1)
    return asyncio.run(_measure())


async def _measure() -> list[Figure]:
    config = ClusterConfig.model_validate(
        {
            "model": "demo",
            "engine": {"threads": 1, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE},
            "prefill": {"count": 1},
            "decode": {"count": 1},
            "logging": {"level": "error"},
        }
    )
    launcher = Launcher(config, progress=lambda text: None)
    begun = time.perf_counter()
    try:
        await launcher.start()
        ready_s = time.perf_counter() - begun
        async with AsyncClient(launcher.endpoint) as client:
            loaded = load(EngineConfig("demo", threads=1, block_size=BLOCK_SIZE))
            first = await _first_token(client, loaded)
            memory = await _memory(client, launcher, loaded.weights_bytes)
    finally:
        await launcher.stop()
    return [Figure("ready for requests", ready_s, "s", READY_S, "limit", 1.0, False), first, *memory]


# ---- time to first token ---------------------------------------------------------------------------------


async def _first_token(client: AsyncClient, loaded: LoadedModel) -> Figure:
    runner = loaded.runner(NUM_BLOCKS)
    served, alone = [], []
    await _serve(client, _prompt(0))
    _prefill(runner, _prompt(0))
    for number in range(1, ROUNDS + 1):
        alone.append(_prefill(runner, _prompt(number)))
        served.append(await _serve(client, _prompt(number)))
    return Figure(
        f"first token of {PROMPT_TOKENS}, 1P1D",
        statistics.median(served) * 1e3,
        "ms",
        statistics.median(alone) * 1e3,
        "prefill alone",
        1.05,
        False,
    )


def _prompt(number: int) -> list[int]:
    """No two share a prefix."""
    return [100 + (number * 7919 + i * 31) % 40000 for i in range(PROMPT_TOKENS)]


async def _serve(client: AsyncClient, prompt: list[int]) -> float:
    begun = time.perf_counter()
    stream = client.stream(prompt, max_tokens=4, temperature=0.0, ignore_eos=True)
    first_s = 0.0
    async for _ in stream:
        first_s = first_s or time.perf_counter() - begun
    return first_s


def _prefill(runner: TorchRunner, prompt: list[int]) -> float:
    blocks = tuple(range(1, 1 + -(-len(prompt) // BLOCK_SIZE)))
    row = Row(("alone", 0), prompt, 0, blocks, True, SamplingParams(temperature=0.0), prompt, len(prompt))
    begun = time.perf_counter()
    runner.run(Batch(rows=(row,), clear=blocks))
    return time.perf_counter() - begun


# ---- memory ----------------------------------------------------------------------------------------------


async def _memory(client: AsyncClient, launcher: Launcher, weights_bytes: int) -> list[Figure]:
    """Private memory of a node against its weights, and the deployment's growth over many requests."""
    await _soak(client, SOAK_WARMUP)
    pids = [member.child.pid for member in launcher.supervisor.members if member.child is not None]
    before = {pid: _private_bytes(pid) for pid in pids}
    await _soak(client, SOAK_REQUESTS)
    grown = sum(_private_bytes(pid) - before[pid] for pid in pids)
    node = max(before[pid] for pid in pids)
    total = sum(before.values())
    return [
        Figure(
            "private memory of a node besides weights",
            (node - weights_bytes) / 2**20,
            "MiB",
            NODE_BYTES / 2**20,
            "limit",
            1.0,
            False,
        ),
        Figure(
            f"memory after {SOAK_REQUESTS} requests more",
            (total + grown) / 2**20,
            "MiB",
            total / 2**20,
            "before",
            1.02,
            False,
        ),
    ]


async def _soak(client: AsyncClient, count: int) -> None:
    """Short requests, each with a prompt of its own, several at a time."""
    numbers = itertools.count()

    async def worker() -> None:
        while (number := next(numbers)) < count:
            prompt = [100 + (number * 13 + i) % 200 for i in range(3 + number % 6)]
            await client.generate(prompt, max_tokens=2, temperature=1.0, ignore_eos=True)

    await asyncio.gather(*(worker() for _ in range(SOAK_PARALLEL)))


def _private_bytes(pid: int) -> int:
    """Anonymous memory: without mapped files, and without the KV pool, which lies in shared memory."""
    info = psutil.Process(pid).memory_info()
    return int(info.rss - info.shared)
