"""What clients may ask for: each bad value gets its status and names its field; limits are told truly."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest

from baton.core.errors import BatonError, Code
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from baton.runtime.grpc_errors import from_rpc_error
from tests.fakes import Cluster, StubConfig, StubNode, router_with, spell


async def failure(cluster: Cluster, request: pb.GenerateRequest, **call: Any) -> BatonError:
    with pytest.raises(grpc.RpcError) as caught:
        async for _ in cluster.inference.Generate(request, **call):
            pass
    return from_rpc_error(caught.value)


async def answer(cluster: Cluster, **request: Any) -> list[pb.GenerateResponse]:
    return [m async for m in cluster.inference.Generate(pb.GenerateRequest(**request), timeout=20)]


def ids(*values: int) -> dict[str, Any]:
    return {"token_ids": pb.TokenIds(ids=values)}


def sampling(**values: Any) -> dict[str, Any]:
    return {"text": "x", "sampling": common.SamplingParams(**values)}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("input", {}),
    ("prompt", {"text": ""}),
    ("prompt", ids()),
    ("prompt", ids(-1)),
    ("prompt", ids(331)),
    ("prompt", ids(2**31)),
    ("prompt", ids(2**63 - 1)),
    ("logit_bias", sampling(logit_bias={331: 5.0})),
    ("logit_bias", sampling(logit_bias={-1: 5.0})),
    ("logit_bias[0]", sampling(logit_bias={0: 1e9})),
    ("logit_bias[0]", sampling(logit_bias={0: math.nan})),
    ("stop_token_ids", sampling(stop_token_ids=[331])),
    ("stop_token_ids", sampling(stop_token_ids=[-1])),
    ("bad_token_ids", sampling(bad_token_ids=[2**40])),
    ("stop[0]", {"text": "x", "stop": [""]}),
    ("stop[1]", {"text": "x", "stop": ["a", "b" * 2000]}),
    ("top_k", sampling(top_k=-2)),
    ("top_p", sampling(top_p=1.1)),
    ("top_p", sampling(top_p=math.nan)),
    ("min_p", sampling(min_p=2)),
    ("temperature", sampling(temperature=-1)),
    ("temperature", sampling(temperature=math.inf)),
    ("temperature", sampling(temperature=math.nan)),
    ("repetition_penalty", sampling(repetition_penalty=0)),
    ("seed", sampling(seed=-2)),
    ("logprobs", sampling(logprobs=332)),
    ("prompt_logprobs", sampling(prompt_logprobs=-1)),
    ("n", {"text": "x", "n": 0}),
    ("n", {"text": "x", "n": 10_000}),
    ("max_tokens", {"text": "x", "max_tokens": -1}),
    ("max_tokens", {"text": "x", "max_tokens": 0}),
    ("max_tokens", {"text": "x", "max_tokens": 2**62}),
    ("min_tokens", {**sampling(min_tokens=5), "max_tokens": 4}),
    ("min_tokens", sampling(min_tokens=10_000)),
    ("slo.ttft_s", {"text": "x", "slo": common.Slo(ttft_s=-1)}),
    ("request_id", {"text": "x", "request_id": "a\nb"}),
    ("request_id", {"text": "x", "request_id": "\u00e9"}),
    ("request_id", {"text": "x", "request_id": "x" * 10_000}),
    ("salt", {"text": "x", "salt": "s" * 2000}),
    ("chat.messages", {"chat": pb.Chat()}),
    ("chat.messages[0].role", {"chat": pb.Chat(messages=[pb.ChatMessage(content="hi")])}),
]


async def test_bad_values_name_their_field_and_harm_nobody() -> None:
    async with router_with(StubNode(config=StubConfig(step_s=0.01, max_model_len=512))) as cluster:
        good = asyncio.ensure_future(answer(cluster, text="good", max_tokens=60))
        for field, request in BAD:
            error = await failure(cluster, pb.GenerateRequest(**request))
            assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field), request
        tokens = [i for message in await good for i in message.token_ids]
        assert tokens == [3 + i for i in range(60)]
        await cluster.all_idle()


@pytest.mark.parametrize(
    "request_",
    [
        sampling(top_k=-1),
        sampling(top_k=0),
        sampling(top_k=100_000),
        sampling(top_p=0),
        sampling(temperature=0),
        sampling(seed=-1),
        sampling(logit_bias={0: -100}),
        {"text": "x", "request_id": ""},
        {"text": "x", "model": "stub"},
        {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", content="")])},
    ],
)
async def test_documented_meanings_are_taken(request_: dict[str, Any]) -> None:
    async with router_with(StubNode()) as cluster:
        assert (await answer(cluster, **request_, max_tokens=2))[-1].usage.completion_tokens == 2


async def test_unknown_model_is_not_found() -> None:
    async with router_with(StubNode()) as cluster:
        error = await failure(cluster, pb.GenerateRequest(model="other", text="x"))
        assert error.code is Code.NOT_FOUND
        assert "'other'" in error.message
        with pytest.raises(grpc.RpcError) as caught:
            await cluster.inference.Tokenize(pb.TokenizeRequest(model="other", text="x"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("prompt", [0, 1, 30, 31, 32, 33])
@pytest.mark.parametrize("max_tokens", [None, 0, 1, 2, 1000])
async def test_length_rules(prompt: int, max_tokens: int | None) -> None:
    nodes = (StubNode("a", StubConfig(max_model_len=32)), StubNode("b", StubConfig(max_model_len=40)))
    async with router_with(*nodes) as cluster:
        (model,) = (await cluster.inference.ListModels(pb.ListModelsRequest())).models
        assert (model.name, model.max_model_len) == ("stub", 32)
        request: dict[str, Any] = ids(*[5] * prompt)
        if max_tokens is not None:
            request["max_tokens"] = max_tokens
        if not prompt or prompt + 1 > 32 or max_tokens == 0:
            error = await failure(cluster, pb.GenerateRequest(**request))
            assert error.code is Code.INVALID_ARGUMENT
            if prompt > 31:
                assert f"{prompt} tokens" in error.message
                assert "32" in error.message
            return
        last = (await answer(cluster, **request))[-1]
        assert last.usage.completion_tokens == min(max_tokens or 1000, 32 - prompt)
        assert last.usage.prompt_tokens == prompt
        assert last.finish_reason == common.FINISH_REASON_LENGTH


async def test_choices_are_independent_requests_with_their_own_seeds() -> None:
    node = StubNode()
    async with router_with(node) as cluster:
        messages = await answer(
            cluster, text="x", n=3, max_tokens=4, sampling=common.SamplingParams(seed=2**63 - 2)
        )
        for index in range(3):
            mine = [m for m in messages if m.index == index]
            assert [i for m in mine for i in m.token_ids] == [3, 4, 5, 6]
            assert [bool(m.finish_reason) for m in mine] == [False] * (len(mine) - 1) + [True]
        assert [m.HasField("usage") for m in messages] == [False] * (len(messages) - 1) + [True]
        assert messages[-1].usage.completion_tokens == 12
        assert {r.sampling.seed for r in node.received} == {2**63 - 2, 2**63 - 1, 0}
        assert len({r.id for r in node.received}) == 3


async def test_seeds_are_drawn_where_none_is_given() -> None:
    node = StubNode()
    async with router_with(node) as cluster:
        for seed in ({}, {"seed": -1}):
            await answer(cluster, text="x", max_tokens=1, sampling=common.SamplingParams(**seed))
        first, second = (r.sampling.seed for r in node.received)
        assert first != second
        assert min(first, second) >= 0


async def test_logprobs_have_their_shape() -> None:
    async with router_with(StubNode()) as cluster:
        for k in (0, 1, 5, 331):
            messages = await answer(
                cluster,
                **ids(5, 6, 7, 8),
                max_tokens=6,
                sampling=common.SamplingParams(logprobs=k, prompt_logprobs=k),
            )
            entries = [entry for m in messages for entry in m.logprobs]
            assert [e.token_id for e in entries] == [i for m in messages for i in m.token_ids]
            assert len(entries) == messages[-1].usage.completion_tokens == 6
            assert all(len(e.top) == k and math.isfinite(e.logprob) for e in entries)
            assert [e.token_id for e in messages[0].prompt_logprobs] == [6, 7, 8]
            assert all(not m.prompt_logprobs for m in messages[1:])


async def test_text_echo_and_tokens_only() -> None:
    config = StubConfig(script=lambda request: spell("answer")[: request.max_tokens])
    async with router_with(StubNode(config=config)) as cluster:
        whole = await answer(cluster, text="ask: ", echo=True, n=2, max_tokens=6, request_id="mine")
        for index in range(2):
            assert "".join(m.text for m in whole if m.index == index) == "ask: answer"
        assert whole[0].request_id == "mine"
        decoded = await answer(cluster, **ids(*spell("as ids: ")), echo=True, max_tokens=6)
        assert "".join(m.text for m in decoded) == "as ids: answer"
        bare = await answer(cluster, text="ask", tokens_only=True, max_tokens=6)
        assert not any(m.text for m in bare)
        assert [i for m in bare for i in m.token_ids] == spell("answer")


async def test_tokenize_and_detokenize() -> None:
    async with router_with(StubNode(config=StubConfig(vocab_size=259))) as cluster:
        for text in ("", "a\u00e9\U0001f600", "long " * 10_000):
            tokens = await cluster.inference.Tokenize(pb.TokenizeRequest(text=text))
            assert list(tokens.token_ids) == spell(text)
            back = await cluster.inference.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
            assert back.text == text
        special = pb.DetokenizeRequest(token_ids=[1, 100], skip_special_tokens=False)
        assert (await cluster.inference.Detokenize(special)).text == "<1>a"
        for bad in (-1, 259, 2**63 - 1):
            with pytest.raises(grpc.RpcError) as caught:
                await cluster.inference.Detokenize(pb.DetokenizeRequest(token_ids=[bad]))
            assert from_rpc_error(caught.value).field == "token_ids"


async def test_no_node_yet_is_unavailable_and_worth_a_retry() -> None:
    async with router_with() as cluster:
        error = await failure(cluster, pb.GenerateRequest(text="x"))
        assert error.code is Code.UNAVAILABLE
        assert error.retry_after_s is not None
        assert not (await cluster.inference.ListModels(pb.ListModelsRequest())).models


async def test_calls_to_a_new_router_wait_for_its_nodes_within_their_deadline() -> None:
    node = StubNode()
    async with router_with(joining_s=30.0) as cluster:
        wrong = await failure(cluster, pb.GenerateRequest(text="x", model="other"), timeout=20)
        assert wrong.code is Code.NOT_FOUND
        early = await failure(cluster, pb.GenerateRequest(text="x"), timeout=0.3)
        assert early.code is Code.DEADLINE_EXCEEDED
        waiting = asyncio.create_task(answer(cluster, text="x", max_tokens=2))
        await asyncio.sleep(0)
        try:
            await node.start(cluster.app.registry_address)
            assert await waiting
        finally:
            await node.stop()


async def test_calls_to_a_router_that_no_node_comes_to_are_refused_in_time() -> None:
    async with router_with(joining_s=0.2) as cluster:
        late = await failure(cluster, pb.GenerateRequest(text="x"), timeout=20)
        assert late.code is Code.UNAVAILABLE
        assert "no node has joined" in str(late)
