"""/v1/chat/completions and /v1/models by OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from baton.core.request import Request
from tests.fakes import StubConfig, StubNode, spell
from tests.router.http.kit import USER, Front, events, http_router

EURO = spell("5 €")  # the last character takes three tokens


def euro(request: Request) -> list[int]:
    return [*EURO, 2][: request.max_tokens]


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with http_router(StubNode(config=StubConfig(script=euro))) as front:
        yield front


async def test_models(front: Front) -> None:
    (model,) = (await front.openai.models.list()).data
    assert (model.id, model.object, model.owned_by) == ("stub", "model", "baton")
    assert model.model_extra == {"max_model_len": 4096}
    assert await front.openai.models.retrieve("stub") == model
    with pytest.raises(openai.NotFoundError) as caught:
        await front.openai.models.retrieve("other/one")
    assert caught.value.code == "model_not_found"


async def test_models_before_any_node_came() -> None:
    async with http_router() as front:
        assert (await front.openai.models.list()).data == []
        with pytest.raises(openai.APIStatusError) as caught:
            await front.openai.models.retrieve("stub")
        assert caught.value.status_code == 503


async def test_an_answer(front: Front) -> None:
    answer = await front.openai.chat.completions.create(model="stub", messages=USER)  # type: ignore[arg-type]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert (choice.message.content, choice.finish_reason) == ("5 €", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(EURO) + 1
    (node,) = front.cluster.nodes
    assert list(node.received[0].prompt_ids) == [1, *spell("user:hi\n")]
    assert node.received[0].max_tokens == 4096 - 9  # all that the context leaves


async def test_a_conversation_goes_on_with_what_the_client_got(front: Front) -> None:
    first = await front.openai.chat.completions.create(model="stub", messages=USER)  # type: ignore[arg-type]
    parts = [{"type": "text", "text": "and"}, {"type": "text", "text": "more"}]
    messages = [
        {"role": "system", "content": "be short", "name": "boss"},
        *USER,
        first.choices[0].message.model_dump(),
        {"role": "user", "content": parts},
    ]
    await front.openai.chat.completions.create(model="stub", messages=messages)  # type: ignore[arg-type]
    (node,) = front.cluster.nodes
    text = "system:be short\nuser:hi\nassistant:5 €\nuser:and\nmore\n"
    assert list(node.received[1].prompt_ids) == [1, *spell(text)]


async def test_the_last_message_can_be_continued(front: Front) -> None:
    messages = [*USER, {"role": "assistant", "content": "4 and"}]
    await front.openai.chat.completions.create(
        model="stub",
        messages=messages,  # type: ignore[arg-type]
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    (node,) = front.cluster.nodes
    assert list(node.received[0].prompt_ids) == [1, *spell("user:hi\nassistant:4 and")]


async def test_limits_of_both_names(front: Front) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        response = await front.post("/v1/chat/completions", {"messages": USER, name: 1})
        assert response.json()["usage"]["completion_tokens"] == 1
        assert response.json()["choices"][0]["finish_reason"] == "length"
    both = {"messages": USER, "max_tokens": 1, "max_completion_tokens": 1}
    response = await front.post("/v1/chat/completions", both)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_completion_tokens")


async def test_logprobs_tell_half_characters_by_their_bytes(front: Front) -> None:
    front.cluster.nodes[0].config.script = lambda request: EURO
    answer = await front.openai.chat.completions.create(
        model="stub",
        messages=USER,  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=2,
        extra_body={"stop_token_ids": [EURO[-1]], "include_stop_str_in_output": True},
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert bytes(b for entry in found.content for b in entry.bytes or ()).decode() == "5 €"
    assert found.content[-1].token == "\ufffd"
    assert [len(entry.top_logprobs) for entry in found.content] == [2] * len(EURO)
    assert answer.choices[0].model_extra == {"stop_reason": EURO[-1]}


async def test_a_stream_says_the_role_first_and_the_usage_last(front: Front) -> None:
    asked = {"messages": USER, "stream": True, "n": 2, "stream_options": {"include_usage": True}}
    response = await front.post("/v1/chat/completions", asked)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last, done = events(response.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2 * (len(EURO) + 1)
    assert (
        last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    )
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1
    for index in range(2):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert "".join(choice["delta"].get("content", "") for choice in own) == "5 €"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_a_stream_without_usage_ends_with_the_reason(front: Front) -> None:
    text, reason, usages = "", None, 0
    stream = await front.openai.chat.completions.create(model="stub", messages=USER, stream=True)  # type: ignore[call-overload]
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        reason = reason or chunk.choices[0].finish_reason
        usages += chunk.usage is not None
    assert (text, reason, usages) == ("5 €", "stop", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("top_logprobs", 2),
        ("stream_options", {"include_usage": True}),
        ("add_generation_prompt", False),
    ],
)
async def test_what_is_not_there_is_refused_by_name(front: Front, field: str, value: object) -> None:
    response = await front.post("/v1/chat/completions", {"messages": USER, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)


async def test_what_changes_nothing_is_taken(front: Front) -> None:
    asked = {
        "messages": [{"role": "user", "content": "hi", "refusal": None, "tool_calls": []}],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "temperature": None,
        "stop": None,
        "seed": None,
        "max_tokens": 2,
    }
    assert (await front.post("/v1/chat/completions", asked)).status_code == 200
