"""Whatever the pool's memory held before, results are the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.core.batch import Batch, StepOutput
from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.engine.torch_runner import TorchRunner
from tests.engine.driver import Driver, Live
from tests.models import prompt_of, write_model

PROMPTS = [prompt_of(n) for n in range(1, 18)]
NEW_TOKENS = 3


def _random_(tensor: torch.Tensor) -> None:
    tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9)) * 100)


FILLS = {
    "nan": lambda tensor: tensor.fill_(torch.nan),
    "huge": lambda tensor: tensor.fill_(1e30),
    "random": _random_,
}


@pytest.fixture(scope="module", params=["T", "mistral", "gemma2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("model") / request.param, request.param)


def _runner(loaded: LoadedModel, blocks: int, pad: int) -> tuple[TorchRunner, Driver]:
    runner = loaded.runner(blocks)
    return runner, Driver(runner, KvCache(blocks, loaded.config.block_size), chunk=11, pad=pad)


def _facts(lives: list[Live]) -> list[tuple[list[int], list[float]]]:
    return [(one.output, one.logprobs) for one in lives]


@pytest.mark.parametrize(("block_size", "pad"), [(4, -1), (16, 0)])
def test_stale_memory_has_no_effect(folder: Path, block_size: int, pad: int) -> None:
    loaded = load(EngineConfig(str(folder), block_size=block_size))
    blocks = 1 + sum(-(-(len(p) + NEW_TOKENS) // block_size) for p in PROMPTS)
    _, clean = _runner(loaded, blocks, pad)
    want = _facts(clean.generate(PROMPTS, NEW_TOKENS))
    for fill in FILLS.values():
        runner, driver = _runner(loaded, blocks, pad)
        fill(runner.pool.tensor)
        assert _facts(driver.generate(PROMPTS, NEW_TOKENS)) == want
        # Freed blocks are handed out again, and hold something else now.
        for again in FILLS.values():
            again(runner.pool.tensor[1:])
            assert _facts(driver.generate(PROMPTS, NEW_TOKENS)) == want


def test_nor_without_clearing(folder: Path) -> None:
    """Kernels read nothing but what a query sees; clearing comes on top."""
    loaded = load(EngineConfig(str(folder), block_size=16))
    want = _facts(_runner(loaded, 40, -1)[1].generate(PROMPTS, NEW_TOKENS))
    runner, driver = _runner(loaded, 40, -1)
    runner.pool.tensor.fill_(torch.nan)
    driver.kv.take_dirty = list  # type: ignore[method-assign]
    assert _facts(driver.generate(PROMPTS, NEW_TOKENS)) == want


def test_what_is_in_view_has_one(folder: Path) -> None:
    """Guards the tests above: the fill does reach what the attention reads."""
    runner, driver = _runner(load(EngineConfig(str(folder), block_size=16)), 40, -1)
    run = runner.run

    def spoiled(batch: Batch) -> StepOutput:
        out = run(batch)
        runner.pool.tensor.fill_(torch.nan)
        return out

    runner.run = spoiled  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="no token"):
        driver.generate(PROMPTS, NEW_TOKENS)
