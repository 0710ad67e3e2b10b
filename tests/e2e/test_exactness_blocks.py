"""Whatever the blocks: lengths around a block's edge, and memory full of rubbish before it is used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.runtime.client.types import Completion
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET, Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import TRIES
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference

WAYS = ("shm", "tcp")
LENGTHS = {4: (1, 2, 3, 4, 5, 7, 8, 9), 16: (15, 16, 17, 31, 32, 33)}
LARGE = 256
DONE_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("blocks"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    return tiny(tmp_path_factory.mktemp("windowed"), "qwen3-alternate")


@pytest.fixture(scope="module")
def edges(model: tuple[Path, Reference]) -> dict[int, list[Case]]:
    """By block size: prompts around one and two blocks, each with three blocks more."""
    return {size: [solid_case(model[1], n, 3 * size) for n in lengths] for size, lengths in LENGTHS.items()}


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", LENGTHS)
async def test_prompts_around_a_blocks_edge(
    block_size: int, way: str, caching: bool, model: tuple[Path, Reference], edges: dict[int, list[Case]]
) -> None:
    """Also again, when the first blocks may be there already, and always in time."""
    engine = {"block_size": block_size, "prefix_caching": caching}
    async with inprocess(config(model[0], **QUIET, engine=engine, transfer={"kinds": (way,)})) as cluster:
        for case in edges[block_size] * 2:
            answer = await _in_time(cluster, case)
            assert answer.timings.decode_node == "decode-0"
            if not caching:
                assert answer.usage.cached_tokens == 0
        await cluster.settled()


async def _in_time(cluster: InProcess, case: Case) -> Completion:
    """Asked again where the machine took its time; what waits for a timer takes it every time."""
    for attempt in range(TRIES):
        begun_s = time.monotonic()
        answer = await exact(cluster, case, salt="again" * attempt)
        if time.monotonic() - begun_s < DONE_WITHIN_S:
            return answer
    raise AssertionError(f"an answer never takes less than {DONE_WITHIN_S} s")


@pytest.mark.parametrize("way", WAYS)
async def test_blocks_larger_than_most_prompts(way: str, model: tuple[Path, Reference]) -> None:
    """The partly filled block is moved, and decode fills it up. The reference looks back once, at the end."""
    engine = {"block_size": LARGE, "num_blocks": 16}
    async with inprocess(config(model[0], **QUIET, engine=engine, transfer={"kinds": (way,)})) as cluster:
        for length in (1, 2, LARGE - 1, LARGE, LARGE + 1, 2 * LARGE - 1, 2 * LARGE, 2 * LARGE + 1):
            await exact(cluster, solid_case(model[1], length, 3))
        await cluster.settled()


# ---- rubbish in the pool ----------------------------------------------------------------------------------


async def _with_rubbish(folder: Path, fill: float | None, cases: list[Case], **engine: Any) -> list[float]:
    """Logprobs of the answers of nodes whose pools, the null block aside, hold `fill` (None: noise)
    wherever nothing was written, before the first request and again before the second round. They come from
    requests that were alone, for batches of other sizes round otherwise; batches are exact besides."""
    async with inprocess(config(folder, **QUIET, engine=engine | {"num_blocks": 160})) as cluster:
        found: list[float] = []
        for round_number in range(2):
            for node in cluster.nodes.values():
                _spoil(node.pool, fill)
            salt = str(round_number)  # what was spoilt is not looked for
            for case in cases:
                found += [one.logprob for one in (await exact(cluster, case, salt=salt)).logprobs]
            await all_exact(cluster, cases, salt=f"together {salt}")
            await cluster.settled()
            _check_pools(cluster)
        return found


def _spoil(pool: torch.Tensor, fill: float | None) -> None:
    if fill is None:
        pool[1:].normal_(generator=torch.Generator().manual_seed(0)).mul_(100)
    else:
        pool[1:] = fill


def _check_pools(cluster: InProcess) -> None:
    """The null block is what it was, and rubbish is still about: it was there all the time."""
    for node in cluster.nodes.values():
        assert not node.pool[0].any()
        assert not (node.pool[1:].abs() < 100).flatten(1).all(1).all()


@pytest.mark.parametrize("variant", ["model", "windowed"])
@pytest.mark.parametrize("block_size", [4, 16])
async def test_what_the_pool_held_before_has_no_effect(
    block_size: int, variant: str, request: pytest.FixtureRequest
) -> None:
    folder, reference = request.getfixturevalue(variant)
    cases = [solid_case(reference, n, 6) for n in range(1, 18)]
    want = await _with_rubbish(folder, float("nan"), cases, block_size=block_size)
    for fill in (1e30, None):
        got = await _with_rubbish(folder, fill, cases, block_size=block_size)
        assert got == pytest.approx(want, abs=1e-6)
