"""/v1/completions by OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from baton.core.request import Request
from tests.fakes import StubConfig, StubNode, spell
from tests.router.http.kit import Front, http_router


def hello(request: Request) -> list[int]:
    return [*spell("hello world"), 2][: request.max_tokens]


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with http_router(StubNode(config=StubConfig(script=hello))) as front:
        yield front


async def test_an_answer(front: Front) -> None:
    answer = await front.openai.completions.create(model="stub", prompt="hi")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "stub"
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "hello world", "stop")
    assert choice.logprobs is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        2,
        12,
        14,
    )
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_the_default_number_of_tokens_is_openais() -> None:
    async with http_router(StubNode()) as front:
        answer = await front.openai.completions.create(model="stub", prompt="hi")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 16
        assert answer.choices[0].finish_reason == "length"


async def test_every_kind_of_prompt(front: Front) -> None:
    ids = spell("hi")
    for prompt in ("hi", ["hi"], ids, [ids]):
        answer = await front.openai.completions.create(model="stub", prompt=prompt, echo=True)
        assert [choice.text for choice in answer.choices] == ["hihello world"]
    (node,) = front.cluster.nodes
    assert {request.prompt_ids for request in node.received} == {tuple(ids)}


async def test_several_prompts_with_several_choices_each(front: Front) -> None:
    prompts = ["a", "bc", "def"]
    answer = await front.openai.completions.create(model="stub", prompt=prompts, n=2, echo=True, seed=5)
    texts = [choice.text for choice in sorted(answer.choices, key=lambda c: c.index)]
    assert texts == [prompt + "hello world" for prompt in prompts for _ in range(2)]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 72)
    (node,) = front.cluster.nodes
    assert sorted(request.sampling.seed for request in node.received) == [5, 5, 5, 6, 6, 6]
    await front.cluster.all_idle()


async def test_several_prompts_as_a_stream(front: Front) -> None:
    texts = {0: "", 1: ""}
    ends = {}
    stream = await front.openai.completions.create(
        model="stub", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert texts == {0: "hello world", 1: "hello world"}
    assert ends == {0: "stop", 1: "stop"}
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 24)


async def test_logprobs_and_the_prompts_own(front: Front) -> None:
    answer = await front.openai.completions.create(
        model="stub", prompt="hi", max_tokens=3, logprobs=2, echo=True
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens == ["h", "i", "h", "e", "l"]
    assert found.text_offset == [0, 1, 2, 3, 4]
    assert found.token_logprobs == [None, *[-0.25] * 4]
    assert found.top_logprobs is not None
    assert found.top_logprobs[0] is None
    assert all(top["<0>"] == -0.5 and len(top) == 3 for top in found.top_logprobs[1:])


async def test_logprobs_without_echo_say_nothing_of_the_prompt(front: Front) -> None:
    answer = await front.openai.completions.create(model="stub", prompt="hi", max_tokens=2, logprobs=0)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens == ["h", "e"]
    assert found.top_logprobs == [{"h": -0.25}, {"e": -0.25}]


async def test_logprobs_in_a_stream_are_those_of_the_whole(front: Front) -> None:
    asked = {"model": "stub", "prompt": "hi", "max_tokens": 5, "logprobs": 1, "echo": True}
    whole = (await front.post("/v1/completions", asked)).json()["choices"][0]["logprobs"]
    joined: dict[str, list[object]] = {name: [] for name in whole}
    stream = await front.openai.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    async for chunk in stream:
        for name, values in chunk.choices[0].logprobs.model_dump().items():
            joined[name] += values
    assert joined == whole


async def test_no_tokens_at_all_scores_the_prompt(front: Front) -> None:
    answer = await front.openai.completions.create(
        model="stub", prompt="abc", max_tokens=0, logprobs=1, echo=True
    )
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)


async def test_stop_strings(front: Front) -> None:
    for stop, kept in (("wor", "hello "), (["x", "o w"], "hell"), ([], "hello world")):
        answer = await front.openai.completions.create(model="stub", prompt="hi", stop=stop)
        assert answer.choices[0].text == kept
        assert answer.choices[0].finish_reason == "stop"
    many = [f"never {i}" for i in range(7)] + ["w"]  # more than OpenAI's four
    answer = await front.openai.completions.create(model="stub", prompt="hi", stop=many)
    assert answer.choices[0].text == "hello "
    assert answer.choices[0].model_extra == {"stop_reason": "w"}


async def test_vllms_fields(front: Front) -> None:
    extra = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [spell("w")[0]],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": -4,
        "cache_salt": "mine",
        "return_token_ids": True,
    }
    answer = await front.openai.completions.create(
        model="stub",
        prompt="hi",
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": 2.5},
        seed=11,
        user="me",
        extra_body=extra,
    )
    (node,) = front.cluster.nodes
    (request,) = node.received
    sampling = request.sampling
    for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        assert getattr(sampling, name) == extra[name], name
    assert sampling.stop_token_ids == tuple(extra["stop_token_ids"])  # type: ignore[arg-type]
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, 11)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.logit_bias == ((7, 2.5),)
    assert (request.priority, request.salt, request.max_tokens) == (-4, "mine", 9)
    choice = answer.choices[0]
    assert choice.model_extra is not None
    assert choice.model_extra["prompt_token_ids"] == spell("hi")
    assert choice.model_extra["token_ids"] == spell("hello world")[: len(choice.model_extra["token_ids"])]


async def test_targets_and_names_by_headers(front: Front) -> None:
    asked = {"prompt": "hi", "max_tokens": 1}
    response = await front.post(
        "/v1/completions", asked, x_slo_ttft_ms="250", x_slo_tpot_ms="12.5", x_request_id="mine-7"
    )
    assert response.headers["x-request-id"] == "mine-7"
    (node,) = front.cluster.nodes
    assert (node.received[0].slo.ttft_s, node.received[0].slo.tpot_s) == (0.25, 0.0125)
    others = [await front.post("/v1/completions", asked | {"stream": i > 1}) for i in range(4)]
    names = [other.headers["x-request-id"] for other in others]
    assert all(name.startswith("req-") for name in names)
    assert len(set(names)) == 4


async def test_timings_only_where_they_are_asked_for(front: Front) -> None:
    plain = (await front.post("/v1/completions", {"prompt": "hi"})).json()
    assert "timings" not in plain
    timed = (await front.post("/v1/completions", {"prompt": "hi", "return_timings": True})).json()["timings"]
    parts = [timed[name] for name in ("queue_s", "prefill_s", "transfer_s", "decode_s")]
    assert sum(parts) == pytest.approx(timed["total_s"])
    assert timed["prefill_node"] == timed["decode_node"] == "stub-0"


async def test_equal_seeds_and_none(front: Front) -> None:
    for _ in range(2):
        await front.openai.completions.create(model="stub", prompt="hi", seed=3, max_tokens=1)
    for _ in range(2):
        await front.openai.completions.create(model="stub", prompt="hi", max_tokens=1)
    (node,) = front.cluster.nodes
    seeds = [request.sampling.seed for request in node.received]
    assert seeds[:2] == [3, 3]
    assert len(set(seeds)) == 3
