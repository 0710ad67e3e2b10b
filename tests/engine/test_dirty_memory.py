"""Buffers start with whatever the process left there: none of it may reach a token."""

import pytest
import torch

from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from tests.models import write_model

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("dirty") / "T", "T"))


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_nan_left_in_freed_memory_reaches_no_token(model: str, kv_dtype: str) -> None:
    for tokens in (1, 5, 17):
        prompt = [222] * tokens
        loaded = load(EngineConfig(model, kv_dtype=kv_dtype, threads=1, block_size=4))
        runner = loaded.runner(64)
        junk = [torch.full((size,), torch.nan) for size in (64, 256, 1024, 4096, 16384) for _ in range(4)]
        del junk
        blocks = tuple(range(1, 2 + tokens // 4))
        row = Row(("a", 0), prompt, 0, blocks, True, GREEDY, prompt, tokens)
        assert runner.run(Batch((row,), clear=blocks)).rows[0].token_id is not None
