"""One limit on a client's messages, told by the first hop; behind it everything fits."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from baton.core.errors import BatonError, InvalidArgument
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc, prefill_node_pb2, prefill_node_pb2_grpc
from baton.runtime.grpc_channel import HEADROOM_BYTES, PIECE_BYTES, REFUSABLE_BYTES, TransportOptions
from baton.runtime.grpc_errors import from_rpc_error
from tests.fakes import StubConfig, StubNode, router_with

LIMIT = 100_000
SMALL = TransportOptions(max_message_bytes=LIMIT)
FOREIGN = [("grpc.max_send_message_length", -1)]  # what it receives: gRPC's own 4 MiB
PROMPT_LOGPROBS_165 = common.SamplingParams(prompt_logprobs=165)


def small_node() -> StubNode:
    return StubNode(config=StubConfig(max_model_len=4_000_000, transport=SMALL))


def text_of(size: int) -> pb.GenerateRequest:
    """A request of exactly so many bytes."""
    request = pb.GenerateRequest(text="a" * size, max_tokens=1)
    request.text = "a" * (2 * size - request.ByteSize())
    assert request.ByteSize() == size
    return request


async def answer(stub: Any, request: Any, **options: Any) -> list[pb.GenerateResponse]:
    return [message async for message in stub.Generate(request, timeout=60, **options)]


async def failure(call: Any) -> BatonError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
    return from_rpc_error(caught.value)


async def test_large_messages_within_the_limit_pass_every_hop() -> None:
    config = StubConfig(max_model_len=4_000_000)
    async with router_with(StubNode(config=config)) as cluster:
        for request in (
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[250] * 2_200_000), max_tokens=1),
            pb.GenerateRequest(text="t" * 3_900_000, max_tokens=1),
        ):
            metadata = (("x-note", "n" * 20_000),)
            (last,) = await answer(cluster.inference, request, metadata=metadata)
            assert last.usage.completion_tokens == 1


async def test_the_first_hop_tells_a_foreign_client_the_limit() -> None:
    """Below, at, just above and far above it."""
    node = small_node()
    async with (
        router_with(node, transport=SMALL) as cluster,
        grpc.aio.insecure_channel(cluster.app.address, options=FOREIGN) as connection,
    ):
        stub: Any = inference_pb2_grpc.InferenceStub(connection)
        for size in (LIMIT - 1, LIMIT):
            (last,) = await answer(stub, text_of(size))
            assert last.usage.completion_tokens == 1
        for size in (LIMIT + 1, 10 * LIMIT, REFUSABLE_BYTES):
            error = await failure(stub.Generate(text_of(size)).read())
            assert str(error) == f"message: has {size} bytes, the limit is {LIMIT}"
        error = await failure(stub.Tokenize(pb.TokenizeRequest(text="a" * LIMIT)))
        assert (error.field, str(LIMIT) in error.message) == ("message", True)
        with pytest.raises(grpc.RpcError) as caught:  # gRPC reads no more than the length of such a one
            await stub.Generate(text_of(LIMIT + REFUSABLE_BYTES + 1)).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(from_rpc_error(caught.value), InvalidArgument)
        assert len(node.received) == 2
        await answer(stub, text_of(1000))


async def test_a_node_asked_directly_tells_the_limit_of_its_hop() -> None:
    limit = LIMIT + HEADROOM_BYTES
    node = small_node()
    async with (
        router_with(node, transport=SMALL),
        grpc.aio.insecure_channel(node.address, options=FOREIGN) as connection,
    ):
        stub: Any = prefill_node_pb2_grpc.PrefillNodeStub(connection)
        for over in (0, 1):
            request = prefill_node_pb2.PrefillRequest(router_id="nobody")
            request.request.id = "i" * (limit + over - request.ByteSize() - 8)
            request.request.id += "i" * (limit + over - request.ByteSize())
            assert request.ByteSize() == limit + over
            with pytest.raises(grpc.RpcError) as caught:
                await stub.Prefill(request)
            says_limit = f"the limit is {limit}" in (caught.value.details() or "")
            assert says_limit == bool(over), caught.value.details()


async def test_what_would_outgrow_the_next_hop_is_refused_by_the_first() -> None:
    node = small_node()
    async with router_with(node, transport=SMALL) as cluster:
        # Fits as it is; with what it may make, two bytes a token, it would not fit the hops of a retry.
        ids = pb.TokenIds(ids=[300] * 45_000)
        error = await failure(
            cluster.inference.Generate(pb.GenerateRequest(token_ids=ids, max_tokens=10_000)).read()
        )
        assert (type(error), error.field) == (InvalidArgument, "prompt")
        assert str(LIMIT) in error.message
        bias = common.SamplingParams(logit_bias=dict.fromkeys(range(331), 1.0))
        fits = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300] * 45_000), max_tokens=1, sampling=bias)
        assert await answer(cluster.inference, fits)
        assert len(node.received) == 1


async def test_the_largest_prompt_that_a_client_can_send_reaches_the_node() -> None:
    """The message for the node is larger than the client's: that is what the inner hops' headroom is for."""
    node = small_node()
    async with router_with(node, transport=SMALL) as cluster:
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300] * 49_985), max_tokens=3, request_id="x")
        assert request.ByteSize() > LIMIT - 60
        await answer(cluster.inference, request)
        assert len(node.received[0].prompt_ids) == 49_985


@pytest.mark.parametrize("transport", [SMALL, TransportOptions()])
async def test_replies_larger_than_the_limit_come_in_pieces(transport: TransportOptions) -> None:
    """3,000 positions of the whole vocabulary, and their text: every message fits a foreign client."""
    config = StubConfig(max_model_len=4_000_000, transport=transport)
    async with (
        router_with(StubNode(config=config), transport=transport) as cluster,
        grpc.aio.insecure_channel(cluster.app.address) as connection,
    ):
        ids = [7 + i % 200 for i in range(3_000)]
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ids), max_tokens=4, sampling=PROMPT_LOGPROBS_165, echo=True
        )
        messages = await answer(inference_pb2_grpc.InferenceStub(connection), request)
        assert sum(message.ByteSize() for message in messages) > 4 * 2**20 > LIMIT
        assert max(message.ByteSize() for message in messages) <= min(
            transport.max_message_bytes, 2 * PIECE_BYTES
        )
        assert [e.token_id for m in messages for e in m.prompt_logprobs] == ids[1:]
        assert [i for m in messages for i in m.token_ids] == [3, 4, 5, 6]
        assert [bool(m.finish_reason) for m in messages] == [False] * (len(messages) - 1) + [True]
        assert [m.usage.completion_tokens for m in messages if m.HasField("usage")] == [4]


async def test_the_echo_of_a_long_prompt_comes_in_pieces() -> None:
    prompt = "\u00e9" * 180_000
    async with router_with(StubNode(config=StubConfig(max_model_len=4_000_000))) as cluster:
        request = pb.GenerateRequest(text=prompt, max_tokens=2, echo=True)
        messages = await answer(cluster.inference, request)
        assert len(messages) > 2
        assert max(message.ByteSize() for message in messages) <= 2 * PIECE_BYTES
        text = "".join(message.text for message in messages)
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 2


async def test_an_answer_that_cannot_be_cut_is_refused_with_the_limit() -> None:
    async with router_with(small_node(), transport=SMALL) as cluster:
        await cluster.inference.Tokenize(pb.TokenizeRequest(text="a" * 60_000))
        error = await failure(cluster.inference.Tokenize(pb.TokenizeRequest(text="\u00e9" * 45_000)))
        assert isinstance(error, InvalidArgument)
        assert str(LIMIT) in error.message


async def test_more_prompt_logprobs_than_anyone_can_hold_are_refused() -> None:
    async with router_with(StubNode(config=StubConfig(max_model_len=4_000_000))) as cluster:
        request = pb.GenerateRequest(text="a" * 100_000, max_tokens=1, sampling=PROMPT_LOGPROBS_165)
        error = await failure(cluster.inference.Generate(request).read())
        assert (type(error), error.field) == (InvalidArgument, "prompt_logprobs")
