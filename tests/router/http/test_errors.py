"""Whatever goes wrong has a status, a shape that OpenAI's clients know, and the name of what is to blame."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import openai
import pytest

from baton.core.errors import Code, FailedPrecondition, InternalError, InvalidArgument, ResourceExhausted
from baton.core.request import Request
from baton.router.http.errors import STATUSES, error_object, error_response
from baton.router.machine_config import RouterConfig
from baton.runtime.grpc_channel import TransportOptions
from tests.fakes import StubConfig, StubNode, eventually, spell
from tests.router.http.kit import USER, events, http_router

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BIG = 2**64
STREAM = {"prompt": "a", "stream": True}


def said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# path, body, param; what the core would refuse over gRPC, and what only JSON can get wrong
WRONG: list[tuple[str, dict[str, Any], str | None]] = [
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": {"a": 1}}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"),
    (TEXT, {"prompt": [""]}, "prompt"),
    (TEXT, {"prompt": [-1]}, "prompt[0]"),
    (TEXT, {"prompt": [5, 331]}, "prompt"),
    (TEXT, {"prompt": [5, 2**31]}, "prompt"),
    (TEXT, {"prompt": [5, 2**63]}, "prompt[1]"),
    (TEXT, {"prompt": [5, 1.5]}, "prompt[1]"),
    (TEXT, {"prompt": [5, True]}, "prompt[1]"),
    (TEXT, {"prompt": ["a", [5]]}, "prompt[1]"),
    (TEXT, {"prompt": [[5], "a"]}, "prompt[1]"),
    (TEXT, {"prompt": [[5], [5, None]]}, "prompt[1][1]"),
    (TEXT, {"prompt": [None]}, "prompt[0]"),
    (TEXT, {"prompt": ["a"] * 129}, "prompt"),
    (TEXT, {"prompt": ["a"] * 65, "n": 2}, "n"),
    (TEXT, {"prompt": "x" * 4096}, "prompt"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
    (TEXT, {"prompt": "a", "best_of": 3, "n": 2}, "best_of"),
    (TEXT, {"prompt": "a", "logprobs": -1}, "logprobs"),
    (TEXT, {"prompt": "a", "logprobs": True}, "logprobs"),
    (TEXT, {"prompt": "a", "logprobs": 2000, "echo": True}, "logprobs"),
    (TEXT, {"prompt": ["a", "b"], "return_timings": True}, "return_timings"),
    (TEXT, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": BIG}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 5.5}, "max_tokens"),
    (TEXT, {"prompt": "a", "min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    (TEXT, {"prompt": "a", "n": 0}, "n"),
    (TEXT, {"prompt": "a", "n": 129}, "n"),
    (TEXT, {"prompt": "a", "n": BIG}, "n"),
    (TEXT, {"prompt": "a", "temperature": -1}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": math.inf}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": math.nan}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": "0.5"}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": True}, "temperature"),
    (TEXT, {"prompt": "a", "temperature": 10**400}, "temperature"),
    (TEXT, {"prompt": "a", "top_p": 1.1}, "top_p"),
    (TEXT, {"prompt": "a", "top_k": -2}, "top_k"),
    (TEXT, {"prompt": "a", "top_k": BIG}, "top_k"),
    (TEXT, {"prompt": "a", "min_p": 2}, "min_p"),
    (TEXT, {"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    (TEXT, {"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    (TEXT, {"prompt": "a", "seed": BIG}, "seed"),
    (TEXT, {"prompt": "a", "seed": -2}, "seed"),
    (TEXT, {"prompt": "a", "stop": ""}, "stop[0]"),
    (TEXT, {"prompt": "a", "stop": [""]}, "stop[0]"),
    (TEXT, {"prompt": "a", "stop": ["ok", 5]}, "stop[1]"),
    (TEXT, {"prompt": "a", "stop": 5}, "stop"),
    (TEXT, {"prompt": "a", "stop": ["x"] * 65}, "stop"),
    (TEXT, {"prompt": "a", "stop_token_ids": [331]}, "stop_token_ids"),
    (TEXT, {"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids"),
    (TEXT, {"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    (TEXT, {"prompt": "a", "logit_bias": {"331": 5}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"-1": 5}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": {"0": 1e9}}, "logit_bias[0]"),
    (TEXT, {"prompt": "a", "logit_bias": {"0": math.nan}}, "logit_bias[0]"),
    (TEXT, {"prompt": "a", "logit_bias": {str(BIG): 1}}, "logit_bias"),
    (TEXT, {"prompt": "a", "logit_bias": [1]}, "logit_bias"),
    (TEXT, {"prompt": "a", "priority": 2**31}, "priority"),
    (TEXT, {"prompt": "a", "cache_salt": "x" * 2000}, "cache_salt"),
    (TEXT, {"prompt": "a", "stream": 1}, "stream"),
    (TEXT, STREAM | {"stream_options": {"include": 1}}, "stream_options.include"),
    (TEXT, STREAM | {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (TEXT, {"prompt": "a", "max_token": 1}, "max_token"),
    (TEXT, {"prompt": "a", "messages": USER}, "messages"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": ["hi"]}, "messages[0]"),
    (CHAT, {"messages": [*USER, {"content": "hi"}]}, "messages[1].role"),
    (CHAT, {"messages": [{"role": "", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, said(5), "messages[0].content"),
    (CHAT, said(["hi"]), "messages[0].content[0]"),
    (CHAT, said([{"type": "image_url"}]), "messages[0].content[0].type"),
    (CHAT, said([{"type": "text"}]), "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": USER * 4097}, "messages"),
    (CHAT, said("x" * 4096), "messages"),
    (CHAT, {"messages": USER, "logprobs": 2}, "logprobs"),
    (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 2000}, "top_logprobs"),
    (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens"),
    (CHAT, {"messages": USER, "max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"messages": USER, "echo": True}, "echo"),
    (CHAT, {"messages": USER, "stop": [""]}, "stop[0]"),
]  # fmt: skip


async def test_wrong_fields_are_named_and_good_requests_go_on() -> None:
    async with http_router(StubNode(config=StubConfig(step_s=0.005))) as front:
        asked = {"prompt": "hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
        async with front.plain.stream("POST", TEXT, json=asked) as good:
            for path, body, param in WRONG:
                response = await front.post(path, body)
                assert response.status_code == 400, (body, response.text)
                error = response.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert (error["type"], error["param"]) == ("invalid_request_error", param), (body, error)
                assert param is None or error["message"].startswith(f"{param}: ")
            text = (await good.aread()).decode()
        assert events(text)[-1] == "[DONE]"
        assert events(text)[-2]["choices"][0]["finish_reason"] == "length"
        await front.cluster.all_idle()


async def test_a_prompt_beyond_the_context_has_openais_code_for_it() -> None:
    async with http_router(StubNode(config=StubConfig(max_model_len=8))) as front:
        for path, body in ((TEXT, {"prompt": "x" * 8}), (CHAT, {"messages": USER})):
            error = (await front.post(path, body)).json()["error"]
            assert error["code"] == "context_length_exceeded"


async def test_a_misspelt_field_is_told_what_it_may_mean() -> None:
    async with http_router(StubNode()) as front:
        error = (await front.post(TEXT, {"prompt": "a", "max_token": 1})).json()["error"]
        assert "did you mean max_tokens?" in error["message"]


async def test_a_field_of_the_other_endpoint_names_that() -> None:
    async with http_router(StubNode()) as front:
        for path, body, other in ((TEXT, {"messages": USER}, CHAT), (CHAT, {"prompt": "a"}, TEXT)):
            answer = await front.post(path, body)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].endswith(f"; it is one of {other}")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "line 1 column 0"),
        (b"{", "line 1 column 1"),
        (b'{\n"prompt": "a",\n"n": 1,}', "line 3 column 8"),
        (b'{"prompt": "\\ud800"}', "line 1 column 19"),
        (b'{"prompt": "\xff"}', "valid"),
        (b'{"prompt": ' + b"[" * 5000, "recursion limit"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
    ],
)
async def test_what_is_no_json_is_told_where(data: bytes, told: str) -> None:
    async with http_router(StubNode()) as front:
        for path in (TEXT, CHAT):
            response = await front.post(path, data)
            assert response.status_code == 400
            assert told in response.json()["error"]["message"]
            assert response.json()["error"]["param"] is None


async def test_labels_paths_and_methods() -> None:
    async with http_router(StubNode()) as front:
        good = b'{"prompt": "a", "max_tokens": 1}'
        wrong = [
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "application/json; charset=latin-1"},
            {"content-type": "application/json", "content-encoding": "gzip"},
            {},
        ]
        for headers in wrong:
            response = await front.plain.post(TEXT, content=good, headers=headers)
            assert response.status_code == 415, headers
            assert response.json()["error"]["code"] == "unsupported_media_type"
        right = {"content-type": "Application/JSON; charset=UTF-8"}
        assert (await front.plain.post(TEXT, content=good, headers=right)).status_code == 200
        missing = await front.plain.post("/v1/embeddings", json={})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        method = await front.plain.get(TEXT)
        assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
        assert method.headers["allow"] == "POST"


async def test_another_model_is_not_found() -> None:
    async with http_router(StubNode()) as front:
        with pytest.raises(openai.NotFoundError) as caught:
            await front.openai.completions.create(model="gpt-4", prompt="hi")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert (await front.post(TEXT, {"prompt": "hi"})).status_code == 200  # none named: the one there is


async def test_a_body_beyond_the_limit_is_refused_with_the_limit() -> None:
    transport = TransportOptions(max_message_bytes=2**17)
    async with http_router(StubNode(config=StubConfig(transport=transport)), transport=transport) as front:
        for size in (2**17, 2**20, 2**23):
            response = await front.post(TEXT, {"prompt": "x" * size})
            assert response.status_code == 413
            error = response.json()["error"]
            assert (error["code"], str(2**17) in error["message"]) == ("request_too_large", True)

        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * 4096

        response = await front.plain.post(
            TEXT, content=pieces(), headers={"content-type": "application/json"}
        )
        assert response.status_code == 413
        assert (await front.post(TEXT, {"prompt": "x", "max_tokens": 1})).status_code == 200


async def test_shed_requests_say_when_to_come_back() -> None:
    node = StubNode(config=StubConfig(max_running=1))
    machine = RouterConfig(decode_slack=0, max_queued=1)
    async with http_router(node, machine=machine) as front:
        node.gate.clear()
        asked = {"prompt": "hi", "max_tokens": 5}
        running = asyncio.ensure_future(front.post(TEXT, asked))
        await eventually(lambda: node.running)
        waiting = asyncio.ensure_future(front.post(TEXT, asked))
        await eventually(lambda: front.cluster.app.machine.queued)
        with pytest.raises(openai.RateLimitError) as caught:
            await front.openai.completions.create(model="stub", prompt="hi")
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert int(caught.value.response.headers["retry-after-ms"]) > 0
        node.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(running, waiting)] == [200, 200]


async def test_no_nodes_yet_and_draining() -> None:
    async with http_router() as front:
        response = await front.post(TEXT, {"prompt": "hi"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["type"] == "server_error"


async def test_deadlines() -> None:
    async with http_router(StubNode(config=StubConfig(step_s=0.05))) as front:
        asked = {"prompt": "hi", "max_tokens": 4000}
        response = await front.post(TEXT, asked, x_request_timeout="0.2")
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        await front.cluster.all_idle()
        for _ in range(10):  # a busy machine may have made no token by then
            late = await front.post(TEXT, asked | {"stream": True}, x_request_timeout="0.3")
            if late.status_code == 200:
                break
        assert late.status_code == 200
        *chunks, last = events(late.text)
        assert chunks
        assert last["error"]["code"] == "deadline_exceeded"
        await front.cluster.all_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_one_prompt_of_several_that_fails_ends_the_call(stream: bool) -> None:
    def uneven(request: Request) -> list[int]:
        return [5] * (2 if request.prompt_ids == tuple(spell("a")) else 4000)

    async with http_router(StubNode(config=StubConfig(script=uneven, step_s=0.02))) as front:
        asked = {"prompt": ["a", "b", "c"], "max_tokens": 4000, "stream": stream}
        if not stream:
            response = await front.post(TEXT, asked, x_request_timeout="0.4")
            assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
            await front.cluster.all_idle()
            return
        for _ in range(10):  # a busy machine may not have made a token of each by then
            response = await front.post(TEXT, asked, x_request_timeout="0.4")
            *chunks, last = events(response.text) if response.status_code == 200 else [None]
            await front.cluster.all_idle()
            if {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1, 2}:
                break
        else:
            raise AssertionError("the others never said anything")
        assert last["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("name", ["x-request-timeout", "x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize("value", ["soon", "", "0", "-1", "nan", "inf", "1_000", "0x10", "5 5", "1e999"])
async def test_headers_that_are_no_numbers(name: str, value: str) -> None:
    async with http_router(StubNode()) as front:
        response = await front.post(TEXT, {"prompt": "hi"}, **{name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("value", ["500", "0.5", "1e3", "2.5E-1", ".5"])
async def test_headers_that_are_numbers(value: str) -> None:
    async with http_router(StubNode()) as front:
        response = await front.post(TEXT, {"prompt": "hi"}, x_slo_ttft_ms=value)
        assert response.status_code == 200


async def test_the_least_number_of_tokens_is_zero_for_completions() -> None:
    async with http_router(StubNode()) as front:
        response = await front.post(TEXT, {"prompt": "hi", "max_tokens": -1})
        assert "must be at least 0, got -1" in response.json()["error"]["message"]


async def test_a_name_that_is_not_safe_in_logs_is_refused() -> None:
    async with http_router(StubNode()) as front:
        for name in ("x" * 257, "caf\xe9"):
            response = await front.post(TEXT, {"prompt": "hi"}, x_request_id=name.encode("latin-1"))  # type: ignore[arg-type]
            assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-id")


async def test_a_failure_in_mid_stream_is_an_event_and_nothing_is_done() -> None:
    node = StubNode(config=StubConfig(step_s=0.01))
    async with http_router(node, machine=RouterConfig(max_retries=0)) as front:
        stream = await front.openai.chat.completions.create(
            model="stub",
            messages=USER,  # type: ignore[arg-type]
            stream=True,
            max_tokens=4000,
        )

        async def read() -> None:
            async for _chunk in stream:
                if node.steps > 5 and node.node_id in front.cluster.app.membership.members:
                    await node.stop()

        with pytest.raises(openai.APIError) as caught:
            await read()
        assert caught.value.code == "unavailable"
        await eventually(lambda: not front.cluster.app.driver.open_requests)


async def test_a_defect_is_internal_and_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_router(StubNode()) as front:

        def broken(*args: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(front.cluster.app.calls, "_words", broken)
        response = await front.post(TEXT, {"prompt": "hi"})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "internal error"
        assert "secret" not in response.text


def test_every_code_has_a_status() -> None:
    assert set(STATUSES) == set(Code)


def test_shapes_of_errors() -> None:
    told = error_object(
        InvalidArgument("is bad", field="chat.messages[3].role"), {"chat.messages": "messages"}
    )
    assert told["error"]["param"] == "messages[3].role"
    assert told["error"]["message"] == "messages[3].role: is bad"
    assert error_object(InternalError("x"))["error"]["type"] == "server_error"
    assert error_response(FailedPrecondition("x")).status_code == 503
    assert json.loads(error_response(ResourceExhausted("x")).body)["error"]["type"] == "rate_limit_error"
