"""The Inference service: what clients call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from baton.core.errors import DeadlineExceeded, InvalidArgument, Unavailable
from baton.core.model import ModelInfo
from baton.core.request import Request, check_token_ids
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.router.choice import Words
from baton.router.driver import Driver
from baton.router.membership import Membership
from baton.router.observe import Observer
from baton.router.pacer import Pacer
from baton.router.prepare import Encoder, Job, Limits, check_model, encode_input, prepare
from baton.router.stream import GenerateStream, echo_text
from baton.router.text.detokenize import Detokenizer
from baton.runtime import codec
from baton.runtime.codec_node import model_to_proto

T = TypeVar("T")
R = TypeVar("R", pb.TokenizeResponse, pb.DetokenizeResponse)

INLINE_SIZE = 4096
"""So many characters or ids are tokenized and checked on the event loop: about a millisecond."""

TEXT_THREADS = 2


class Tokenizer(Encoder, Protocol):
    """What the service needs of a model's tokenizer: see `router.text`."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """served: the model's name to clients. default_timeout_s: for calls without a deadline; None: none."""

    served: str
    limits: Limits
    default_timeout_s: float | None = None


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """observer: told of every write, and once of every call that was started, after its end."""

    def __init__(
        self,
        options: ServiceOptions,
        tokenizer: Tokenizer,
        membership: Membership,
        driver: Driver,
        observer: Observer,
    ) -> None:
        self.draining = False
        self._served = options.served
        self._options = options
        self._tokenizer = tokenizer
        self._membership = membership
        self._driver = driver
        self._observer = observer
        self._pacer = Pacer()
        self._ids = itertools.count(1)
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    async def Generate(  # type: ignore[override]  # the stubs know only generators
        self, request: pb.GenerateRequest, context: Any
    ) -> None:
        received_s = self._driver.now()
        deadline_s = self._deadline(received_s, context)
        model = self._model(request.model)
        self._membership.check_pairs()
        internal_id = f"{self._membership.router_id}-{next(self._ids)}"

        def work() -> tuple[Job, str]:
            job = prepare(request, model, self._tokenizer, self._options.limits, internal_id)
            return job, echo_text(job, self._tokenizer.decode)

        job, echo = await self._off_loop(_size(request), work)
        stream = GenerateStream(job, self._driver, self._pacer, self._words(job), received_s)
        stream.on_tokens = self._observer.tokens_written
        stream.begin_with(echo)
        try:
            await stream.run(context.write, deadline_s)
        except grpc.aio.InternalError:
            # The write failed since the client has gone: nobody is left to be told.
            raise asyncio.CancelledError from None
        except Unavailable:
            self._membership.check_pairs()  # says more than that there was no node
            raise
        finally:
            self._observer.call_ended(stream, received_s)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        check_model(request.model, self._served)

        def encode() -> pb.TokenizeResponse:
            response = pb.TokenizeResponse()
            ids = encode_input(request, self._tokenizer, self._options.limits)
            codec.ids_to_proto(ids, response.token_ids)
            return self._within_limit(response)

        return await self._off_loop(_size(request), encode)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        model = self._model(request.model)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True

        def decode() -> pb.DetokenizeResponse:
            ids = codec.ids_from_proto(request.token_ids)
            check_token_ids("token_ids", ids, model.vocab_size)
            return self._within_limit(pb.DetokenizeResponse(text=self._tokenizer.decode(ids, skip)))

        return await self._off_loop(len(request.token_ids), decode)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        model = self._membership.model(self._served)
        return pb.ListModelsResponse(models=[] if model is None else [model_to_proto(model)])

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _words(self, job: Job) -> Callable[[Request], Words] | None:
        if job.tokens_only and not job.stop:
            return None

        def words(request: Request) -> Words:
            prompt, skip = request.prompt_ids, job.skip_special_tokens
            detokenizer = self._tokenizer.detokenizer(prompt, skip)
            return Words(
                detokenizer,
                job.stop,
                include_stop=job.include_stop,
                min_tokens=request.sampling.min_tokens,
            )

        return words

    def _model(self, name: str) -> ModelInfo:
        if self.draining:
            raise Unavailable("the router is draining", retry_after_s=1.0)
        check_model(name, self._served)
        model = self._membership.model(self._served)
        if model is None:
            self._membership.check_pairs()  # says more, if some came that do not fit
            raise Unavailable("no node has joined yet", retry_after_s=1.0)
        return model

    def _deadline(self, received_s: float, context: Any) -> float | None:
        left_s = context.time_remaining()
        if left_s is None:
            left_s = self._options.default_timeout_s
        if left_s is None:
            return None
        if left_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        return received_s + float(left_s)

    def _within_limit(self, response: R) -> R:
        size, limit = response.ByteSize(), self._options.limits.max_message_bytes
        if size > limit:
            raise InvalidArgument(f"the answer has {size} bytes, the limit on a message is {limit}")
        return response

    async def _off_loop(self, size: int, work: Callable[[], T]) -> T:
        """What is small here and now, what is large on a thread."""
        if size <= INLINE_SIZE:
            return work()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work)


def _size(request: pb.GenerateRequest | pb.TokenizeRequest) -> int:
    """How much there is to tokenize or check: characters, ids or bytes, whatever is known at once."""
    if request.WhichOneof("input") == "text":
        return len(request.text)
    if isinstance(request, pb.GenerateRequest) and request.WhichOneof("input") == "token_ids":
        return len(request.token_ids.ids)
    return request.ByteSize()
