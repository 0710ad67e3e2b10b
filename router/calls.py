"""Clients' calls, whatever API they came by: from a GenerateRequest to a stream of GenerateResponses.

The gRPC service and the HTTP front both go through here, so they share limits, checks, tokens and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from baton.core.errors import DeadlineExceeded, Unavailable
from baton.core.model import ModelInfo
from baton.core.request import Request
from baton.proto.v1 import inference_pb2 as pb
from baton.router.choice import Words
from baton.router.driver import Driver
from baton.router.membership import Membership
from baton.router.observe import Observer
from baton.router.pacer import Pacer
from baton.router.prepare import Encoder, Job, Limits, check_model, prepare
from baton.router.stream import GenerateStream, echo_text
from baton.router.text.detokenize import Detokenizer

T = TypeVar("T")

INLINE_SIZE = 4096
"""So many characters, ids or logprobs are no trouble on the event loop: about a millisecond."""

TEXT_THREADS = 2

MOST_EARLY = 256
"""Calls that wait for the first nodes."""

REFUSED_POLL_S = 0.1
"""How soon they hear that those which came do not fit."""


class Tokenizer(Encoder, Protocol):
    """What calls need of a model's tokenizer: see `router.text`."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> Detokenizer: ...

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class CallOptions:
    """served: the model's name to clients. default_timeout_s: for calls without a deadline; None: none.
    joining_s: for so long after the router's start calls wait for nodes, which are about to join: it may have
    been restarted on a port where others serve, and no client chose it."""

    served: str
    limits: Limits
    default_timeout_s: float | None = None
    joining_s: float = 0.0


class Calls:
    """`open` a call, then `run` it. observer: told of every write, and once of every call that was run, after
    its end. draining: nothing new is opened. nodes_joined: set it once a call could run."""

    def __init__(
        self,
        options: CallOptions,
        tokenizer: Tokenizer,
        membership: Membership,
        driver: Driver,
        observer: Observer,
    ) -> None:
        self.draining = False
        self.nodes_joined = asyncio.Event()
        self.options = options
        self.tokenizer = tokenizer
        self.now = driver.now
        self._membership = membership
        self._driver = driver
        self._observer = observer
        self._pacer = Pacer()
        self._ids = itertools.count(1)
        self._early = 0
        self._joining_until_s = driver.now() + options.joining_s
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    def model(self, name: str) -> ModelInfo:
        """The served model, if `name` is its name or empty. NotFound; Unavailable while there is none."""
        if self.draining:
            raise Unavailable("the router is draining", retry_after_s=1.0)
        check_model(name, self.options.served)
        model = self.served
        if model is None:
            self._membership.check_pairs()  # says more, if some came that do not fit
            raise Unavailable("no node has joined yet", retry_after_s=1.0)
        return model

    @property
    def served(self) -> ModelInfo | None:
        """None: no node has ever joined."""
        return self._membership.model(self.options.served)

    def deadline(self, received_s: float, left_s: float | None) -> float | None:
        """When a call must have ended. left_s: what the client gives it, None: the default."""
        if left_s is None:
            left_s = self.options.default_timeout_s
        if left_s is None:
            return None
        if left_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        return received_s + float(left_s)

    async def open(
        self, request: pb.GenerateRequest, received_s: float, deadline_s: float | None = None
    ) -> GenerateStream:
        """Check and tokenize; nothing has been asked of any node yet. InvalidArgument names the field."""
        check_model(request.model, self.options.served)
        await self._wait_for_nodes(deadline_s)
        model = self.model(request.model)
        self._membership.check_pairs()
        internal_id = f"{self._membership.router_id}-{next(self._ids)}"

        def work() -> tuple[Job, str]:
            job = prepare(request, model, self.tokenizer, self.options.limits, internal_id)
            return job, echo_text(job, self.tokenizer.decode)

        job, echo = await self.off_loop(input_size(request), work)
        stream = GenerateStream(job, self._driver, self._pacer, self._words(job), received_s)
        stream.on_tokens = self._observer.tokens_written
        stream.begin_with(echo)
        return stream

    async def run(
        self,
        stream: GenerateStream,
        write: Callable[[pb.GenerateResponse], Awaitable[object]],
        deadline_s: float | None,
    ) -> None:
        """Until every choice has ended; raises a choice's error, or whatever `write` does."""
        try:
            await stream.run(write, deadline_s)
        except Unavailable:
            self._membership.check_pairs()  # says more than that there was no node
            raise
        finally:
            self._observer.call_ended(stream, stream.received_s)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """What is small here and now, what is large on a thread."""
        if size <= INLINE_SIZE:
            return work()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work)

    async def _wait_for_nodes(self, deadline_s: float | None) -> None:
        """While they are about to join; DeadlineExceeded. FailedPrecondition: those that came do not fit.
        Too many calls do not wait."""
        if self._early >= MOST_EARLY:
            return
        until_s = min(self._joining_until_s, math.inf if deadline_s is None else deadline_s)
        self._early += 1
        try:
            while not self.nodes_joined.is_set() and (left_s := until_s - self.now()) > 0:
                self._membership.check_pairs()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.nodes_joined.wait(), min(left_s, REFUSED_POLL_S))
        finally:
            self._early -= 1
        if deadline_s is not None and self.now() >= deadline_s:
            raise DeadlineExceeded("no node joined within the deadline")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _words(self, job: Job) -> Callable[[Request], Words] | None:
        if job.tokens_only and not job.stop:
            return None

        def words(request: Request) -> Words:
            prompt, skip = request.prompt_ids, job.skip_special_tokens
            detokenizer = self.tokenizer.detokenizer(prompt, skip)
            return Words(
                detokenizer,
                job.stop,
                include_stop=job.include_stop,
                min_tokens=request.sampling.min_tokens,
            )

        return words


def input_size(request: pb.GenerateRequest | pb.TokenizeRequest) -> int:
    """How much there is to tokenize or check: characters, ids or bytes, whatever is known at once."""
    if request.WhichOneof("input") == "text":
        return len(request.text)
    if isinstance(request, pb.GenerateRequest) and request.WhichOneof("input") == "token_ids":
        return len(request.token_ids.ids)
    return request.ByteSize()
