"""The demo model through one prefill and one decode node equals transformers in fp32, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.engine.weights.locate import locate
from baton.router.text.load import load_tokenizer
from baton.runtime.client.types import Completion
from tests.e2e.cluster import Cluster, config, running
from tests.e2e.exact import LOGPROB_TOLERANCE
from tests.engine.smollm2 import smollm2
from tests.models import MARGIN

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEW_TOKENS = 64
STORED_TOLERANCE = 5e-3

STORY = """The relay has four legs. The first runner waits at the line, and the second waits at the bend.
When the first runner comes, the second runner begins to run, looks back once, and holds out a hand. Then the
baton changes hands, and the first runner stops. Nobody drops the baton, because they have practised this on
every evening of the summer. The third runner is the tallest of the four, and the fourth is the fastest.
"""
COUNTING = "".join(
    f"Lap {n} took {60 + n} seconds, and after lap {n} comes lap {n + 1}.\n" for n in range(1, 60)
)
LIST = "".join(f"{n}. Item number {n} is in box {n}.\n" for n in range(1, 120))
WORDS = "One two three four five six seven eight nine ten. " * 20

# Text and tokens of it. Chosen so that the model is sure of each of the 64 tokens, which the test checks.
PROMPTS = (
    (LIST, 5),
    (WORDS, 17),
    (COUNTING, 48),
    (STORY * 2, 113),
    (STORY * 3, 256),
    (LIST, 511),
    (COUNTING, 900),
    (LIST, 1500),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    settings = config("demo", engine={"block_size": 16, "num_blocks": 512, "chunk_tokens": 256})
    async with running(settings) as deployment:
        yield deployment


@pytest.mark.timeout(300)  # half a minute on two idle cores
async def test_equals_transformers(cluster: Cluster) -> None:
    tokenizer = load_tokenizer(str(locate("demo")))
    prompts = [list(tokenizer.encode(text))[:tokens] for text, tokens in PROMPTS]
    assert [len(prompt) for prompt in prompts] == [tokens for _, tokens in PROMPTS]
    answers = await asyncio.gather(*(_answer(cluster, prompt) for prompt in prompts))
    again = await _answer(cluster, prompts[3])
    assert again.usage.cached_tokens > 0
    assert again.token_ids == answers[3].token_ids
    model = await asyncio.to_thread(smollm2)
    for prompt, answer in zip(prompts, answers, strict=True):
        await asyncio.to_thread(_is_greedy, model, prompt, answer)
    await cluster.idle()


@pytest.mark.timeout(300)
async def test_the_default_equals_it_as_well() -> None:
    """The file's blocks of 4 and 8 bits, multiplied as they are, with inputs in 16 bits."""
    tokenizer = load_tokenizer(str(locate("demo")))
    prompts = [list(tokenizer.encode(text))[:tokens] for text, tokens in PROMPTS[1:5]]
    settings = config("demo", engine={"block_size": 16, "num_blocks": 512, "quantization": "auto"})
    async with running(settings) as cluster:
        answers = await asyncio.gather(*(_answer(cluster, prompt) for prompt in prompts))
    model = await asyncio.to_thread(smollm2)
    for prompt, answer in zip(prompts, answers, strict=True):
        await asyncio.to_thread(_is_greedy, model, prompt, answer, STORED_TOLERANCE)


async def _answer(cluster: Cluster, prompt: list[int]) -> Completion:
    options: dict[str, Any] = {"temperature": 0.0, "logprobs": 0, "ignore_eos": True}
    answer = await cluster.client.generate(prompt, max_tokens=NEW_TOKENS, **options)
    assert (answer.timings.prefill_node, answer.timings.decode_node) == ("prefill-0", "decode-0")
    return answer


@torch.no_grad()
def _is_greedy(
    model: torch.nn.Module, prompt: list[int], answer: Completion, tolerance: float = LOGPROB_TOLERANCE
) -> None:
    """One dense pass over prompt and answer: each token is the one that transformers would have put there,
    so by induction the whole answer is its greedy continuation."""
    output = list(answer.token_ids)
    assert len(output) == NEW_TOKENS
    assert len(set(output)) > 5, "a token repeated shows nothing"
    ids = torch.tensor([[*prompt, *output[:-1]]])
    rows = model(ids, use_cache=False, logits_to_keep=NEW_TOKENS).logits[0].log_softmax(-1)
    best = rows.topk(2)
    margin = float((best.values[:, 0] - best.values[:, 1]).min())
    assert margin > MARGIN, f"{len(prompt)} tokens: near tie ({margin}), choose another prompt"
    assert output == best.indices[:, 0].tolist()
    assert [one.logprob for one in answer.logprobs] == pytest.approx(
        best.values[:, 0].tolist(), abs=tolerance
    )
