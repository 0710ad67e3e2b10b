"""Every model family, through prefill and decode apart, equals the dense model token for token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.cluster import config, running
from tests.e2e.exact import QUIET, Case, all_exact, solid_case, tiny
from tests.e2e.inprocess import inprocess

LENGTHS = (1, 5, 16, 23, 40)
NEW_TOKENS = 12
REACH = 16  # two windows of the models here
WINDOWED = ("mistral", "qwen2-window", "qwen3-alternate", "gemma2")
FAMILIES = ("T", "tied", "hd24", "bias", "qwen2", "qwen3", "gpt_neox", *WINDOWED)
WAYS = ("shm", "tcp")
SHAPES = [(block, chunk, way) for block in (1, 4, 16) for chunk in (5, 64) for way in WAYS]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Case]]]:
    """Filled as tests ask."""
    return {}


@pytest.fixture
def family(variant: str, families: dict, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    if variant not in families:
        folder, reference = tiny(tmp_path_factory.mktemp("family"), variant)
        reach = REACH if variant == "mistral" else None  # every layer has a window
        families[variant] = folder, [solid_case(reference, n, NEW_TOKENS, reach=reach) for n in LENGTHS]
    return families[variant]


def engine(block_size: int, chunk: int) -> dict[str, Any]:
    return {"block_size": block_size, "chunk_tokens": chunk, "num_blocks": 1 + 640 // block_size}


async def serves_exactly(folder: Path, cases: list[Case], **sections: Any) -> None:
    """Alone, then all together, then again with every prompt known."""
    async with inprocess(config(folder, **QUIET, **sections)) as cluster:
        for case in cases[1:3]:
            await all_exact(cluster, [case], salt="alone")
        for answer in await all_exact(cluster, cases):
            assert (answer.timings.prefill_node, answer.timings.decode_node) == ("prefill-0", "decode-0")
            assert answer.timings.transfer_bytes > 0
        await all_exact(cluster, cases)
        await cluster.settled()


def turned() -> list[tuple[str, int, int, str]]:
    """Each shape with the main model; each other family with three of them, so that every shape is used."""
    every = [("T", *shape) for shape in SHAPES]
    for i, variant in enumerate(FAMILIES[1:]):
        every += [(variant, *SHAPES[(5 * i + 4 * j + i // 4) % len(SHAPES)]) for j in range(3)]
    return every


@pytest.mark.parametrize(("variant", "block_size", "chunk", "way"), turned())
async def test_every_family_is_exact(
    variant: str, block_size: int, chunk: int, way: str, family: tuple[Path, list[Case]]
) -> None:
    await serves_exactly(*family, engine=engine(block_size, chunk), transfer={"kinds": (way,)})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("prefill", "decode"), [((4, 5), (16, 64)), ((16, 64), (4, 5)), ((16, 64), (1, 5))])
@pytest.mark.parametrize("variant", ["T", "gemma2"])
async def test_nodes_may_differ_in_block_and_chunk_size(
    variant: str, prefill: tuple[int, int], decode: tuple[int, int], way: str, family: tuple[Path, list[Case]]
) -> None:
    await serves_exactly(
        *family,
        prefill_nodes={"engine": engine(*prefill)},
        decode_nodes={"engine": engine(*decode)},
        transfer={"kinds": (way,)},
    )


@pytest.mark.parametrize("variant", ["T"])
async def test_two_of_each_in_processes_of_their_own(family: tuple[Path, list[Case]]) -> None:
    """Each pair alone, with caches that are warm on one side of it; then all at once."""
    folder, cases = family
    settings = config(folder, prefill=2, decode=2, engine=engine(4, 16))
    async with running(settings) as cluster:
        for pair in (
            ("prefill-0", "decode-0"),
            ("prefill-0", "decode-1"),
            ("prefill-1", "decode-1"),
            ("prefill-1", "decode-0"),
        ):
            async with cluster.only(*pair):
                for answer in await all_exact(cluster, cases):
                    assert (answer.timings.prefill_node, answer.timings.decode_node) == pair
        for _ in range(2):
            await asyncio.gather(*(all_exact(cluster, cases, salt=salt) for salt in ("", "a", "b")))
        await cluster.idle()
