"""On the native backend a request's numbers hang on nothing but the request: the same bits whatever runs
beside it, however its prompt is cut, whether it was computed twice, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.kernels import native
from baton.kernels.quantize import SCHEMES
from tests.engine.driver import Driver
from tests.models import prompt_of, write_model

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels here")

PROMPT = prompt_of(23)
NEIGHBOURS = [prompt_of(length, seed=7) for length in range(1, 17)]
NEW_TOKENS = 6
MODELS = ("T", "mistral", "qwen3", "mixtral")
QUANTIZATIONS = ("none", *SCHEMES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    return {variant: write_model(root / variant, variant) for variant in MODELS}


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    yield
    native.configure(1)


def _load(folder: Path, **options: object) -> LoadedModel:
    return load(EngineConfig(str(folder), block_size=4, backend="native", **options))


def _driver(loaded: LoadedModel, chunk: int = 64) -> Driver:
    return Driver(loaded.runner(200), KvCache(200, 4), chunk=chunk)


def _alone(loaded: LoadedModel, chunk: int = 64) -> tuple[list[int], list[float]]:
    [one] = _driver(loaded, chunk).generate([PROMPT], NEW_TOKENS)
    return one.output, one.logprobs


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("variant", MODELS)
def test_the_batch_does_not_matter(variant: str, quantization: str, folders: dict[str, Path]) -> None:
    loaded = _load(folders[variant], quantization=quantization)
    want = _alone(loaded)
    *_, one = _driver(loaded, chunk=11).generate([*NEIGHBOURS, PROMPT], NEW_TOKENS)
    assert (one.output, one.logprobs) == want


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8"])
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_chunks_do_not_matter(chunk: int, kv_dtype: str, folders: dict[str, Path]) -> None:
    loaded = _load(folders["T"], quantization="int8-w8a8", kv_dtype=kv_dtype)
    assert _alone(loaded, chunk) == _alone(loaded)


@pytest.mark.parametrize("variant", MODELS)
def test_computing_again_gives_the_same(variant: str, folders: dict[str, Path]) -> None:
    """After a preemption the prompt and what was made of it are one longer prompt."""
    loaded = _load(folders[variant], quantization="int4")
    output, logprobs = _alone(loaded)
    [again] = _driver(loaded, chunk=5).generate([[*PROMPT, *output[:3]]], NEW_TOKENS - 3)
    assert (again.output, again.logprobs) == (output[3:], logprobs[3:])


@pytest.mark.parametrize("quantization", ["none", "int8", "int8-w8a8", "fp8"])
@pytest.mark.parametrize("variant", ["T", "mixtral"])
def test_threads_do_not_matter(variant: str, quantization: str, folders: dict[str, Path]) -> None:
    loaded = _load(folders[variant], quantization=quantization)
    want = [(one.output, one.logprobs) for one in _driver(loaded).generate(NEIGHBOURS, NEW_TOKENS)]
    native.configure(2)
    got = [(one.output, one.logprobs) for one in _driver(loaded).generate(NEIGHBOURS, NEW_TOKENS)]
    assert got == want
