"""HTTP and gRPC are two doors to one room: the same request gives the same tokens, whichever it comes by."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import torch
from openai import AsyncOpenAI

from tests.e2e.cluster import config
from tests.e2e.exact import QUIET
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import write_model
from tests.router.http.kit import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(20, 75))
CHAT = [{"role": "user", "content": "Say something. \u20ac?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcess]:
    torch.set_num_threads(1)
    folder: Path = write_model(tmp_path_factory.mktemp("http") / "T")
    async with inprocess(config(folder, **QUIET)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def openai(cluster: InProcess) -> AsyncIterator[AsyncOpenAI]:
    url = f"http://{cluster.router.http_address}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.3, "seed": 7, "n": 3},
    {"temperature": 0.8, "seed": 8, "top_p": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"temperature": 1.0, "seed": 9, "logit_bias": {"40": 3.0, "41": -100.0}},
]


@pytest.mark.parametrize("number", range(len(SAMPLINGS)))
async def test_token_ids_in_token_ids_out(cluster: InProcess, openai: AsyncOpenAI, number: int) -> None:
    sampling = SAMPLINGS[number]
    bias = {int(i): value for i, value in sampling.get("logit_bias", {}).items()}
    n = sampling.get("n", 1)
    options = {name: value for name, value in sampling.items() if name not in ("logit_bias", "n", "seed")}
    by_grpc = [
        await cluster.client.generate(
            PROMPT,
            max_tokens=24,
            logit_bias=bias or None,
            seed=sampling["seed"] + i if "seed" in sampling else None,
            **options,
        )
        for i in range(n)
    ]
    answer = await openai.completions.create(
        model=cluster.router.settings.model,
        prompt=PROMPT,
        max_tokens=24,
        extra_body={"return_token_ids": True},
        **sampling,
    )
    for choice, same in itertools.zip_longest(answer.choices, by_grpc):
        assert choice.model_extra is not None
        assert tuple(choice.model_extra["token_ids"]) == same.token_ids
        assert choice.text == same.text
        assert choice.finish_reason == same.finish_reason.value
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(same.token_ids) for same in by_grpc)
    await cluster.settled()


ENDS: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": 2},
    {"stop_token_ids": [0]},
    {"stop_token_ids": [1]},
    {"stop": True},
    {"stop": True, "include_stop": True},
    {"ignore_eos": True, "max_tokens": 4},
    {"min_tokens": 3, "stop_token_ids": [0]},
]


@pytest.mark.parametrize("number", range(len(ENDS)))
async def test_ends_of_answers(cluster: InProcess, number: int) -> None:
    """stop_token_ids: places in the reference's output; stop: the text of its first visible tokens."""
    reference = await cluster.client.generate(PROMPT, max_tokens=12, temperature=0.0)
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0} | ENDS[number]
    if "stop_token_ids" in options:
        options["stop_token_ids"] = [reference.token_ids[i] for i in options["stop_token_ids"]]
    if "stop" in options:
        options["stop"] = [reference.text[1:3]]
    by_grpc = await cluster.client.generate(PROMPT, **options)
    asked = options | {"prompt": PROMPT, "return_token_ids": True}
    if "include_stop" in asked:
        asked["include_stop_str_in_output"] = asked.pop("include_stop")
    url = f"http://{cluster.router.http_address}"
    async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
        whole = (await client.post("/v1/completions", json=asked)).json()
        streamed = events((await client.post("/v1/completions", json=asked | {"stream": True})).text)
    (choice,) = whole["choices"]
    assert tuple(choice["token_ids"]) == by_grpc.token_ids
    assert (choice["text"], choice["finish_reason"]) == (by_grpc.text, by_grpc.finish_reason.value)
    assert whole["usage"]["completion_tokens"] == len(by_grpc.token_ids)
    chunks = [chunk["choices"][0] for chunk in streamed[:-1]]
    assert tuple(i for chunk in chunks for i in chunk["token_ids"]) == by_grpc.token_ids
    assert "".join(chunk["text"] for chunk in chunks) == by_grpc.text
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    await cluster.settled()


async def test_a_chat_whole_and_streamed(cluster: InProcess, openai: AsyncOpenAI) -> None:
    by_grpc = await cluster.client.generate(
        [dict(message) for message in CHAT], max_tokens=24, temperature=0.9, seed=4
    )
    asked: dict[str, Any] = {
        "model": cluster.router.settings.model,
        "messages": CHAT,
        "max_tokens": 24,
        "temperature": 0.9,
        "seed": 4,
    }
    whole = await openai.chat.completions.create(**asked)
    assert whole.choices[0].message.content == by_grpc.text
    text = ""
    async for chunk in await openai.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
        usage = chunk.usage
    assert text == by_grpc.text
    assert usage is not None
    assert usage.prompt_tokens == by_grpc.usage.prompt_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens
    await cluster.settled()


async def test_logprobs_are_those_of_grpc(cluster: InProcess, openai: AsyncOpenAI) -> None:
    by_grpc = await cluster.client.generate(PROMPT, max_tokens=6, temperature=0.0, logprobs=3)
    answer = await openai.completions.create(
        model=cluster.router.settings.model, prompt=PROMPT, max_tokens=6, temperature=0.0, logprobs=3
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx([entry.logprob for entry in by_grpc.logprobs])
    assert found.top_logprobs is not None
    for mine, theirs in zip(found.top_logprobs, by_grpc.logprobs, strict=True):
        assert max(mine.values()) == pytest.approx(max(logprob for _, logprob in theirs.top))


async def test_a_client_that_leaves_frees_real_nodes(cluster: InProcess) -> None:
    url = f"http://{cluster.router.http_address}"
    asked = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 4}
    async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
        for _ in range(3):
            async with client.stream("POST", "/v1/completions", json=asked) as response:
                async for _line in response.aiter_lines():
                    break
            await cluster.settled(1.0)


async def test_both_doors_at_once(cluster: InProcess, openai: AsyncOpenAI) -> None:
    model = cluster.router.settings.model
    alone = await cluster.client.generate(PROMPT, max_tokens=16, temperature=0.0)

    async def http() -> str:
        answer = await openai.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0.0)
        return answer.choices[0].text

    async def grpc() -> str:
        return (await cluster.client.generate(PROMPT, max_tokens=16, temperature=0.0)).text

    texts = await asyncio.gather(*(one() for one in (http, grpc) * 6))
    assert set(texts) == {alone.text}
    await cluster.settled()
