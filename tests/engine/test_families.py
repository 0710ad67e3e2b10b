"""Every family, over the paged pool and in any chunks, equals the dense fp32 model token for token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.core.kvcache import KvCache
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.engine.models.hooked import HookedModel
from tests.engine.driver import GREEDY, Driver
from tests.models import VARIANTS, Reference, prompt_of, solid_model

PROMPTS = [prompt_of(n) for n in (1, 7, 8, 9, 16, 22)]
NEW_TOKENS = 8
HOOKED = ("gemma2", "gpt_neox", "phi", "stablelm", "olmo2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Reference]]:
    return {}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _model(variant: str, models: dict, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    if variant not in models:
        folder = tmp_path_factory.mktemp(variant)
        models[variant] = solid_model(folder, variant, PROMPTS[1:], NEW_TOKENS)
    return models[variant]


def _driver(loaded: LoadedModel, chunk: int, sampling: SamplingParams = GREEDY) -> Driver:
    blocks = 1 + sum(-(-(len(p) + NEW_TOKENS) // loaded.config.block_size) for p in PROMPTS)
    return Driver(
        loaded.runner(blocks), KvCache(blocks, loaded.config.block_size), chunk=chunk, sampling=sampling
    )


# With the kernels that run here by default, and with those that run anywhere.
@pytest.mark.parametrize(
    ("backend", "block_size", "chunk"),
    [("auto", 1, 5), ("auto", 4, 5), ("auto", 4, 64), ("auto", 16, 64), ("torch", 4, 5), ("torch", 16, 64)],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_dense_model(
    variant: str,
    backend: str,
    block_size: int,
    chunk: int,
    models: dict,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, reference = _model(variant, models, tmp_path_factory)
    loaded = load(EngineConfig(str(folder), block_size=block_size, backend=backend))
    assert isinstance(loaded.model, HookedModel) == (variant in HOOKED)
    for prompt, got in zip(PROMPTS, _driver(loaded, chunk).generate(PROMPTS, NEW_TOKENS), strict=True):
        want = reference.greedy(prompt, NEW_TOKENS)
        assert got.output == want.token_ids
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-3)


@pytest.mark.parametrize("variant", ["T", "gemma2"])
@pytest.mark.parametrize("chunk", [5, 64])
def test_prompt_logprobs_equal_the_dense_models(
    variant: str, chunk: int, models: dict, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, reference = _model(variant, models, tmp_path_factory)
    loaded = load(EngineConfig(str(folder), block_size=4))
    driver = _driver(loaded, chunk, SamplingParams(temperature=0.0, prompt_logprobs=2))
    for prompt, got in zip(PROMPTS, driver.generate(PROMPTS, 2), strict=True):
        dense = reference.logprobs(prompt)
        assert [one.token_id for one in got.prompt_logprobs] == prompt[1:]
        for position, one in enumerate(got.prompt_logprobs):
            assert one.logprob == pytest.approx(float(dense[position, prompt[position + 1]]), abs=1e-3)
            assert [i for i, _ in one.top] == dense[position].topk(2).indices.tolist()


def test_alone_or_in_a_batch_gives_the_same(models: dict, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, _ = _model("T", models, tmp_path_factory)
    driver = _driver(load(EngineConfig(str(folder), block_size=4)), 64)
    together = driver.generate(PROMPTS, NEW_TOKENS)
    for prompt, one in zip(PROMPTS, together, strict=True):
        assert driver.generate([prompt], NEW_TOKENS)[0].output == one.output
