"""The demo model through the paged engine equals transformers in fp32 on the same weights."""

from __future__ import annotations

import pytest
import torch

from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from tests.engine.driver import Driver
from tests.engine.smollm2 import smollm2
from tests.models import MARGIN, Reference

# A question in the chat format, a beginning, and a longer chat turn.
PROMPTS = [
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    [504, 3575, 282, 4649, 314],
    [1, 4093, 198, *([504, 2365, 6354, 16438, 27003] * 12), 2, 198, 1, 520, 9531, 198],
]
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.set_num_threads(1)
    return load(EngineConfig("demo", quantization="none"))


def test_facts(loaded: LoadedModel) -> None:
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (30, 3, 64)
    assert (loaded.vocab_size, loaded.max_positions) == (49152, 8192)
    assert loaded.eos_token_ids == (2,)
    assert loaded.model.decoder.head is loaded.model.decoder.embedding


def test_equals_transformers(loaded: LoadedModel) -> None:
    blocks = 1 + sum(-(-(len(p) + NEW_TOKENS) // 16) for p in PROMPTS)
    driver = Driver(loaded.runner(blocks), KvCache(blocks, 16), chunk=24)
    reference = Reference(smollm2())
    for prompt, got in zip(PROMPTS, driver.generate(PROMPTS, NEW_TOKENS), strict=True):
        want = reference.greedy(prompt, NEW_TOKENS)
        assert want.margin > MARGIN
        assert got.output == want.token_ids
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-3)
