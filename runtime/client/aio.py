"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from baton.core.errors import BatonError, Cancelled
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.runtime.client import convert
from baton.runtime.client.fork import check_owner, mark_used
from baton.runtime.client.types import Completion, Delta, Model, Prompt
from baton.runtime.grpc_channel import DEFAULT, TransportOptions, channel


class AsyncStream:
    """An answer as it is made: iterate over its Deltas. `cancel` (or leaving the block) frees the nodes."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._cancelled = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            async for message in self._call:
                yield convert.delta(message)
        except grpc.RpcError as error:
            raise convert.error_of(error, self._address) from None
        except asyncio.CancelledError:
            if not self._cancelled:
                raise  # it is the task that is cancelled, not the call
            raise Cancelled("cancelled by the client") from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Idempotent; an iteration under way ends with Cancelled."""
        self._cancelled = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class AsyncClient:
    """Talks to a router at `host:port`. All methods raise BatonError subclasses (`baton.core.errors`).

    timeout_s is the deadline of the whole call, passed on to all nodes; None: none.
    """

    def __init__(self, address: str, *, model: str = "", transport: TransportOptions = DEFAULT) -> None:
        self._pid = mark_used()
        self._address = address
        self._model = model
        self._channel = channel(address, transport)
        self._stub: Any = inference_pb2_grpc.InferenceStub(self._channel)

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Any) -> AsyncStream:
        """The answer as it is made.

        Options, all by name (see `baton.runtime.client.types.Options`): max_tokens, n, stop, seed,
        temperature (default 1; 0: always the likeliest token), top_k, top_p, min_p, repetition_penalty,
        presence_penalty, frequency_penalty, logit_bias, min_tokens, stop_token_ids, bad_token_ids,
        ignore_eos, logprobs, prompt_logprobs, include_stop, skip_special_tokens, tokens_only, echo,
        continue_final_message, ttft_slo_s, tpot_slo_s, priority, salt, request_id. TypeError for any other.
        """
        check_owner(self._pid)
        request = convert.request(prompt, convert.options_of(options), self._model)
        return AsyncStream(self._stub.Generate(request, timeout=timeout_s), self._address)

    async def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Any) -> Completion:
        """The whole answer. Options: as for `stream`."""
        collector = convert.Collector()
        async for item in self.stream(prompt, timeout_s=timeout_s, **options):
            collector.add(item)
        return collector.completion()

    async def tokenize(self, prompt: Prompt, *, timeout_s: float | None = None) -> tuple[int, ...]:
        request = convert.checked(
            lambda: pb.TokenizeRequest(model=self._model, **convert.prompt_field(prompt))
        )
        return tuple((await self._unary(self._stub.Tokenize, request, timeout_s)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, timeout_s: float | None = None
    ) -> str:
        request = convert.checked(
            lambda: pb.DetokenizeRequest(
                model=self._model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
            )
        )
        return str((await self._unary(self._stub.Detokenize, request, timeout_s)).text)

    async def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        answer = await self._unary(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return tuple(convert.model(model) for model in answer.models)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _unary(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        check_owner(self._pid)
        try:
            return await method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            failure: BatonError = convert.error_of(error, self._address)
            raise failure from None
