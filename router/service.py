"""The Inference service: what gRPC clients call."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc

from baton.core.errors import InvalidArgument
from baton.core.request import check_token_ids
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.router.calls import Calls, input_size
from baton.router.prepare import check_model, encode_input
from baton.runtime import codec
from baton.runtime.codec_node import model_to_proto

R = TypeVar("R", pb.TokenizeResponse, pb.DetokenizeResponse)


class InferenceService(inference_pb2_grpc.InferenceServicer):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tokenizer = calls.tokenizer
        self._options = calls.options

    async def Generate(  # type: ignore[override]  # the stubs know only generators
        self, request: pb.GenerateRequest, context: Any
    ) -> None:
        calls = self._calls
        received_s = calls.now()
        deadline_s = calls.deadline(received_s, context.time_remaining())
        stream = await calls.open(request, received_s, deadline_s)
        try:
            await calls.run(stream, context.write, deadline_s)
        except grpc.aio.InternalError:
            # The write failed since the client has gone: nobody is left to be told.
            raise asyncio.CancelledError from None

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        check_model(request.model, self._options.served)

        def encode() -> pb.TokenizeResponse:
            response = pb.TokenizeResponse()
            ids = encode_input(request, self._tokenizer, self._options.limits)
            codec.ids_to_proto(ids, response.token_ids)
            return self._within_limit(response)

        return await self._calls.off_loop(input_size(request), encode)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        model = self._calls.model(request.model)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True

        def decode() -> pb.DetokenizeResponse:
            ids = codec.ids_from_proto(request.token_ids)
            check_token_ids("token_ids", ids, model.vocab_size)
            return self._within_limit(pb.DetokenizeResponse(text=self._tokenizer.decode(ids, skip)))

        return await self._calls.off_loop(len(request.token_ids), decode)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        model = self._calls.served
        return pb.ListModelsResponse(models=[] if model is None else [model_to_proto(model)])

    def _within_limit(self, response: R) -> R:
        size, limit = response.ByteSize(), self._options.limits.max_message_bytes
        if size > limit:
            raise InvalidArgument(f"the answer has {size} bytes, the limit on a message is {limit}")
        return response
