"""Requests that begin alike: their KV is one on decode, too, and is read for all of them at once (ATT2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.core.batch import Batch, StepOutput
from baton.node import build
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET, Case, all_exact, solid_case, tiny
from tests.e2e.faults import TRIES
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference, prompt_of

NEW_TOKENS = 32  # so that answers that begin one after another meet
MEETING_TOKENS = 64  # long enough for eight answers to meet
WIDE = 2048  # of the middle layers, so that steps take as long as those of a real model


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of these models are so small that it would seldom pay."""
    monkeypatch.setattr(build, "CPU_LEVEL_BYTES", 0)


@pytest.fixture(scope="module", params=["T", "qwen3-alternate"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Reference]:
    """The second one has a sliding window of 8 in every other layer."""
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("cascade"), request.param, intermediate_size=WIDE)


@pytest.fixture(scope="module")
def cases(model: tuple[Path, Reference]) -> list[Case]:
    """A tree: 24 tokens that all share, 33 that three do, and a prompt that begins all others."""
    reference, trunk = model[1], prompt_of(24, seed=1)
    branch = [*trunk, *prompt_of(9, seed=2)]
    lengths = [(trunk, 24), (trunk, 27), (trunk, 31), (branch, 34), (branch, 35), (branch, 41)]
    return [solid_case(reference, length, NEW_TOKENS, prefix) for prefix, length in lengths]


def _watch(cluster: InProcess, name: str) -> list[Batch]:
    """Batches of a node from here on."""
    batches: list[Batch] = []
    runner = cluster.nodes[name].app._parts.runner
    run = runner.run

    def watched(batch: Batch) -> StepOutput:
        batches.append(batch)
        return run(batch)

    runner.run = watched  # type: ignore[method-assign]
    return batches


@pytest.mark.parametrize("way", ["shm", "tcp"])
async def test_shared_beginnings_are_read_together_and_exactly(
    way: str, model: tuple[Path, Reference], cases: list[Case]
) -> None:
    async with inprocess(config(model[0], **QUIET, transfer={"kinds": (way,)})) as cluster:
        batches = _watch(cluster, "decode-0")
        for attempt in range(2 + TRIES):  # at once, when nothing is there yet, and again, when all of it is
            answers = await all_exact(cluster, cases * 2)
            assert {answer.timings.decode_node for answer in answers} == {"decode-0"}
            shared = [part for batch in batches for part in batch.shared]
            if attempt > 0 and shared and max(len(part.rows) for part in shared) > 2:
                break  # else they did not meet
        await cluster.settled()
    assert max(len(part.rows) for part in shared) > 2
    assert max(part.end_block for part in shared) >= 8


async def test_it_can_be_turned_off(model: tuple[Path, Reference], cases: list[Case]) -> None:
    async with inprocess(config(model[0], **QUIET, engine={"cascade": False})) as cluster:
        batches = _watch(cluster, "decode-0")
        await all_exact(cluster, cases)
        assert not any(batch.shared for batch in batches)


async def test_hand_offs_that_cross_leave_one_copy_of_what_they_share(
    model: tuple[Path, Reference],
) -> None:
    """Eight of one prompt at once: while they decode, full blocks are held once."""
    case = solid_case(model[1], 41, MEETING_TOKENS)
    async with inprocess(config(model[0], **QUIET)) as cluster:
        batches = _watch(cluster, "decode-0")
        tables: list[Any] = []
        for attempt in range(TRIES):  # until five of them meet
            await all_exact(cluster, [case] * 8, salt=str(attempt))
            tables = [
                [row.block_table[:10] for row in batch.rows] for batch in batches if len(batch.rows) > 4
            ]
            if tables:
                break
        assert tables
        assert all(len({tuple(table) for table in each}) == 1 for each in tables)
        await cluster.settled()
