"""An answer as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from typing import Any

from starlette.types import Send

from baton.core.errors import BatonError
from baton.proto.v1 import inference_pb2 as pb
from baton.router.http.answers import Sheet, breathe
from baton.router.http.errors import error_object
from baton.router.http.jsons import to_json
from baton.router.http.parts import Part
from baton.router.http.usage import Usage

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events otherwise
]


class EventStream:
    """The status goes out with the first event: until then a failure can have its own.

    `send` waits while the client does not read; what nodes make meanwhile joins the next event, so a slow
    client costs no more than its answer's tokens.
    """

    def __init__(self, sheet: Sheet, send: Send) -> None:
        self._sheet = sheet
        self._send = send
        self._usage = Usage(drop_output=sheet.asked.drop_output)
        self._started = False
        self._spoken: set[int] = set()

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None:
        sheet = self._sheet
        index, part = sheet.read(prompt, message)
        self._usage.take(message)
        if not self._says_something(index, part):
            return
        more: dict[str, Any] = {"usage": None} if sheet.asked.include_usage else {}
        if sheet.asked.timings and not sheet.asked.include_usage and message.HasField("usage"):
            more["timings"] = self._usage.timings()
        size = part.size if index in self._spoken else part.size + sheet.prompt_size
        self._spoken.add(index)
        shape = sheet.shapes[index]
        data = await sheet.json(size, lambda: sheet.envelope.around([shape.chunk(part)], **more))
        await self._event(data)
        await breathe(part)

    async def finish(self) -> None:
        asked = self._sheet.asked
        if asked.include_usage:
            more: dict[str, Any] = {"usage": self._usage.as_json()}
            if asked.timings:
                more["timings"] = self._usage.timings()
            await self._event(to_json(self._sheet.envelope.around([], **more)))
        await self._data(DONE, last=True)

    async def fail(self, error: BatonError) -> bool:
        """An event with the error, and no [DONE]: what came so far is not the whole answer."""
        if self._started:
            data = to_json(error_object(error, self._sheet.asked.names))
            await self._data(b"data: %s\n\n" % data, last=True)
        return self._started

    def _says_something(self, index: int, part: Part) -> bool:
        """A token may make no text yet: half a character, or what may become a stop string."""
        if part.text or part.finish is not None or part.logprobs or part.prompt_logprobs:
            return True
        return index not in self._spoken or (self._sheet.asked.token_ids and bool(part.token_ids))

    async def _event(self, data: bytes) -> None:
        await self._data(b"data: %s\n\n" % data, last=False)

    async def _data(self, data: bytes, *, last: bool) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
