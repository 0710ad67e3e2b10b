"""The two routes that make tokens: a body comes in, an answer goes out, by the same calls as gRPC's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from baton.core.errors import BatonError
from baton.router.calls import Calls
from baton.router.http import headers
from baton.router.http.answers import Answer, Sheet, WholeAnswer
from baton.router.http.body import parse, read_body
from baton.router.http.connection import while_connected
from baton.router.http.errors import error_response
from baton.router.http.events import EventStream
from baton.router.http.fields import GenerateBody
from baton.router.http.models import fingerprint
from baton.router.http.parts import Parts
from baton.router.http.requests import Asked
from baton.router.http.shapes import ChatChoice, CompletionChoice, Envelope
from baton.router.prepare import Limits
from baton.router.stream import GenerateStream

BodyT = TypeVar("BodyT", bound=GenerateBody)

Ask = Callable[[BodyT, Mapping[str, str], Limits], Asked]


class Generate(Generic[BodyT]):
    """An ASGI application. kind: what the body is; ask: what it asks for; choice: how each choice looks."""

    def __init__(
        self,
        calls: Calls,
        kind: type[BodyT],
        ask: Ask[BodyT],
        choice: type[CompletionChoice] | type[ChatChoice],
    ) -> None:
        self._calls = calls
        self._kind = kind
        self._ask = ask
        self._choice = choice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """BatonError and HttpError, while nothing went out; ClientGone."""
        received_s = self._calls.now()
        request = Request(scope, receive)
        deadline_s = self._calls.deadline(received_s, headers.timeout_s(request.headers))
        data = await read_body(request, self._calls.options.limits.max_message_bytes)
        async with while_connected(receive):
            asked = await self._calls.off_loop(len(data) // 16, lambda: self._asked(data, request))
            answer: Answer | None = None
            try:
                streams = [await self._calls.open(each, received_s, deadline_s) for each in asked.requests]
                answer = self._answer_for(asked, streams, send)
                await self._run(streams, answer, deadline_s)
                await answer.finish()
            except BatonError as error:
                if answer is None or not await answer.fail(error):
                    await error_response(error, asked.names)(scope, receive, send)

    def _asked(self, data: bytes, request: Request) -> Asked:
        return self._ask(parse(data, self._kind), request.headers, self._calls.options.limits)

    async def _run(self, streams: Sequence[GenerateStream], answer: Answer, deadline_s: float | None) -> None:
        if len(streams) == 1:
            await self._calls.run(streams[0], partial(answer.write, 0), deadline_s)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, stream in enumerate(streams):
                    tasks.create_task(self._calls.run(stream, partial(answer.write, number), deadline_s))
        except ExceptionGroup as group:
            raise next((e for e in group.exceptions if isinstance(e, BatonError)), group) from None

    def _answer_for(self, asked: Asked, streams: Sequence[GenerateStream], send: Send) -> Answer:
        shapes: list[CompletionChoice | ChatChoice] = []
        parts: list[Parts] = []
        for stream in streams:
            drop = stream.echo_chars if asked.drop_output else None
            for request in stream.job.requests:
                parts.append(Parts(request.sampling.stop_token_ids, drop))
                shapes.append(
                    self._choice(len(shapes), asked, request.prompt_ids, self._calls.tokenizer.token_bytes)
                )
        model = self._calls.served
        envelope = Envelope(
            id=f"{self._choice.prefix}-{streams[0].job.requests[0].id}",
            kind=self._choice.chunk_kind if asked.stream else self._choice.whole_kind,
            created=int(time.time()),
            model=self._calls.options.served,
            fingerprint=None if model is None else fingerprint(model),
        )
        told = sum(len(stream.job.requests[0].prompt_ids) for stream in streams) if asked.token_ids else 0
        sheet = Sheet(asked, envelope, shapes, parts, self._calls.off_loop, told)
        return EventStream(sheet, send) if asked.stream else WholeAnswer(sheet, send)
