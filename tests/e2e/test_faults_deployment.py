"""Whole deployments, killed in the middle of work, started side by side: none harms another or the next."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from baton.kv_transfer.segment import DIRECTORY
from baton.runtime.client.aio import AsyncClient
from baton.runtime.config import ClusterConfig
from tests.e2e.cluster import Deployment, config, running
from tests.e2e.exact import exact, solid_case, tiny
from tests.e2e.faults import PATIENCE_S, ending, segments_of, until
from tests.models import Reference

SERVE = (str(Path(sys.executable).with_name("baton")), "serve", "--json", "--log-level=warning")
ROUNDS = 5
TOGETHER = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("deployment"))


@dataclass
class Served(Deployment):
    """A deployment of `baton serve`, as a user has it."""

    address: str
    pids: list[int]
    client: AsyncClient

    @property
    def endpoint(self) -> str:
        return self.address

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def serving(model: Path, *args: str) -> Iterator[tuple[str, list[int]]]:
    """Endpoint and pids, the launcher's first. All are killed at the end, which also reaps the launcher."""
    launcher = subprocess.Popen([*SERVE, str(model), *args], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    try:
        said = json.loads(launcher.stdout.readline())
        yield said["endpoint"], [launcher.pid, *(process["pid"] for process in said["processes"])]
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def _listed() -> set[str]:
    return {name for name in os.listdir(DIRECTORY) if name.startswith("baton-")}


async def test_killed_deployments_leave_nothing_for_long(model: tuple[Path, Reference]) -> None:
    """CFG3. The report has 20 rounds, here 5: three requests, then SIGKILL for all at a random moment; in the
    last rounds for the launcher alone, whose children must go with it. What was left in shared memory is
    gone after the next start. A second deployment lives through it all, its memory untouched."""
    folder, reference = model
    cases = [solid_case(reference, 9, 6, prefix=[40 + i]) for i in range(3)]
    long, draw, dead = solid_case(reference, 400, 4), random.Random(4), set[str]()
    chunks = ("--set=engine.chunk_tokens=4", "--set=engine.max_batch_tokens=4", "--set=engine.block_size=4")
    async with running(config(folder, prefill=0, decode=0, both=1)) as second:
        kept = segments_of([second.pid("both-0")])
        assert len(kept) == 1
        for round_number in range(ROUNDS):
            with serving(folder, *chunks, "--set=engine.num_blocks=256") as (endpoint, pids):
                assert not dead & _listed(), "a killed process's segment outlived the next start"
                async with AsyncClient(endpoint) as client:
                    served = Served(endpoint, pids, client)
                    await asyncio.gather(*(exact(served, case) for case in cases))
                    moving = asyncio.ensure_future(ending(client.generate(long.prompt, max_tokens=4)))
                    await asyncio.sleep(draw.uniform(0, 0.3))
                    dead |= segments_of(pids[2:])
                    for pid in reversed(pids if round_number < ROUNDS - 2 else pids[:1]):
                        os.kill(pid, signal.SIGKILL)
                    await moving
                    await until(lambda served=served: _gone(served), what="all gone")
            await exact(second, cases[0], salt=str(round_number))
            assert kept <= _listed()
        await second.idle(PATIENCE_S)
    assert len(dead) == 2 * ROUNDS
    assert not kept & _listed()


async def _gone(served: Served) -> bool:
    return not [pid for pid in served.alive() if pid != served.pids[0]]


async def test_deployments_started_together(model: tuple[Path, Reference]) -> None:
    """CFG4. The report starts 8 pairs at once, ten times; here 4 deployments of one node, once: no port is
    taken twice, and each answers by its own name."""
    folder, reference = model
    case = solid_case(reference, 9, 6)
    async with AsyncExitStack() as stack:
        settings = [
            config(folder, prefill=0, decode=0, both=1, served_name=f"model-{i}") for i in range(TOGETHER)
        ]
        clusters = await _all_of(stack, settings)
        assert len({cluster.endpoint for cluster in clusters}) == TOGETHER
        for i, cluster in enumerate(clusters):
            assert [model.name for model in await cluster.client.models()] == [f"model-{i}"]
            await exact(cluster, case)
            assert [n.registration.node_id for n in (await cluster.state()).nodes] == ["both-0"]


async def _all_of(stack: AsyncExitStack, settings: list[ClusterConfig]) -> list[Deployment]:
    """All started side by side."""
    contexts = [running(one) for one in settings]
    return list(await asyncio.gather(*(stack.enter_async_context(context) for context in contexts)))
