"""How an answer goes out: as one JSON object, or as server-sent events while it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.types import Send

from baton.core.errors import BatonError
from baton.proto.v1 import inference_pb2 as pb
from baton.router.http.errors import error_object, json_response, to_json
from baton.router.http.parts import Part, Parts, joined
from baton.router.http.requests import Asked
from baton.router.http.shapes import ChoiceShape, Envelope
from baton.router.http.usage import Usage

DONE = b"data: [DONE]\n\n"
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect events otherwise
}


class Answer(Protocol):
    """`write` for each message of each prompt's stream, then `finish`; `fail` in place of what is left."""

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None: ...

    async def finish(self) -> None: ...

    async def fail(self, error: BatonError) -> bool:
        """False: nothing went out yet, so that the error can have a status of its own."""


class Choices:
    """All choices of a call, by their index: prompt by prompt."""

    def __init__(self, asked: Asked, shapes: Sequence[ChoiceShape], parts: Sequence[Parts]) -> None:
        self.asked = asked
        self.shapes = shapes
        self._parts = parts

    def index(self, prompt: int, message: pb.GenerateResponse) -> int:
        return prompt * self.asked.choices_each + message.index

    def part(self, index: int, message: pb.GenerateResponse) -> Part:
        return self._parts[index].of(message)


class WholeAnswer:
    """Nothing goes out before all of it is there."""

    def __init__(self, envelope: Envelope, kind: str, choices: Choices, send: Send) -> None:
        self._envelope = envelope
        self._kind = kind
        self._choices = choices
        self._send = send
        self._usage = Usage(drop_output=choices.asked.drop_output)
        self._parts: list[list[Part]] = [[] for _ in choices.shapes]

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None:
        index = self._choices.index(prompt, message)
        self._parts[index].append(self._choices.part(index, message))
        self._usage.take(message)

    async def finish(self) -> None:
        shapes = self._choices.shapes
        choices = [shape.whole(joined(parts)) for shape, parts in zip(shapes, self._parts, strict=True)]
        more: dict[str, Any] = {"usage": self._usage.as_json()}
        if self._choices.asked.timings:
            more["timings"] = self._usage.timings()
        response = json_response(self._envelope.around(self._kind, choices, **more))
        await self._send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body})

    async def fail(self, error: BatonError) -> bool:
        return False


class EventStream:
    """The status goes out with the first event: until then a failure can have its own.

    `send` waits while the client does not read; what nodes make meanwhile joins the next event, so a slow
    client costs no more than its answer's tokens.
    """

    def __init__(self, envelope: Envelope, kind: str, choices: Choices, send: Send) -> None:
        self._envelope = envelope
        self._kind = kind
        self._choices = choices
        self._send = send
        self._usage = Usage(drop_output=choices.asked.drop_output)
        self._started = False
        self._spoken: set[int] = set()

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None:
        index = self._choices.index(prompt, message)
        part = self._choices.part(index, message)
        self._usage.take(message)
        if not self._says_something(index, part):
            return
        self._spoken.add(index)
        asked = self._choices.asked
        more: dict[str, Any] = {"usage": None} if asked.include_usage else {}
        if asked.timings and not asked.include_usage and message.HasField("usage"):
            more["timings"] = self._usage.timings()
        chunk = self._choices.shapes[index].chunk(part)
        await self._event(self._envelope.around(self._kind, [chunk], **more))

    async def finish(self) -> None:
        asked = self._choices.asked
        if asked.include_usage:
            more: dict[str, Any] = {"usage": self._usage.as_json()}
            if asked.timings:
                more["timings"] = self._usage.timings()
            await self._event(self._envelope.around(self._kind, [], **more))
        await self._data(DONE, last=True)

    async def fail(self, error: BatonError) -> bool:
        """An event with the error, and no [DONE]: what came so far is not the whole answer."""
        if self._started:
            data = to_json(error_object(error, self._choices.asked.names))
            await self._data(b"data: %s\n\n" % data, last=True)
        return self._started

    def _says_something(self, index: int, part: Part) -> bool:
        """A token may make no text yet: half a character, or what may become a stop string."""
        if part.text or part.finish is not None or part.logprobs or part.prompt_logprobs:
            return True
        return index not in self._spoken or (self._choices.asked.token_ids and bool(part.token_ids))

    async def _event(self, content: Mapping[str, Any]) -> None:
        await self._data(b"data: %s\n\n" % to_json(content), last=False)

    async def _data(self, data: bytes, *, last: bool) -> None:
        if not self._started:
            self._started = True
            headers = [(name.encode(), value.encode()) for name, value in SSE_HEADERS.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
