"""What goes out for a call: the choices of all its prompts, and the answer that is one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Send

from baton.core.errors import BatonError
from baton.proto.v1 import inference_pb2 as pb
from baton.router.calls import INLINE_SIZE
from baton.router.http.jsons import large_to_json, to_json
from baton.router.http.parts import Part, Parts, joined
from baton.router.http.requests import Asked
from baton.router.http.shapes import ChoiceShape, Envelope
from baton.router.http.usage import Usage

LARGE = 512  # characters, ids and logprobs together: what takes less is no trouble to others

OffLoop = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]


class Answer(Protocol):
    """`write` for each message of each prompt's stream, then `finish`; `fail` in place of what is left."""

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None: ...

    async def finish(self) -> None: ...

    async def fail(self, error: BatonError) -> bool:
        """False: nothing went out yet, so that the error can have a status of its own."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Choices by index, prompt by prompt. off_loop: runs what is large elsewhere, see Calls. prompt_size:
    tokens of all prompts, where those are told."""

    asked: Asked
    envelope: Envelope
    shapes: Sequence[ChoiceShape]
    parts: Sequence[Parts]
    off_loop: OffLoop
    prompt_size: int

    def read(self, prompt: int, message: pb.GenerateResponse) -> tuple[int, Part]:
        """Which choice a message is of, and what it says."""
        index = prompt * self.asked.choices_each + message.index
        return index, self.parts[index].of(message)

    async def json(self, size: int, content: Callable[[], dict[str, Any]]) -> bytes:
        """size: of the parts in it."""
        if size <= INLINE_SIZE:
            return to_json(content())
        return await self.off_loop(size, lambda: large_to_json(content()))


class WholeAnswer:
    """Nothing goes out before all of it is there."""

    def __init__(self, sheet: Sheet, send: Send) -> None:
        self._sheet = sheet
        self._send = send
        self._size = sheet.prompt_size
        self._usage = Usage(drop_output=sheet.asked.drop_output)
        self._parts: list[list[Part]] = [[] for _ in sheet.shapes]

    async def write(self, prompt: int, message: pb.GenerateResponse) -> None:
        index, part = self._sheet.read(prompt, message)
        self._parts[index].append(part)
        self._usage.take(message)
        self._size += part.size
        await breathe(part)

    async def finish(self) -> None:
        body = await self._sheet.json(self._size, self._content)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, error: BatonError) -> bool:
        return False

    def _content(self) -> dict[str, Any]:
        sheet = self._sheet
        choices = [shape.whole(joined(parts)) for shape, parts in zip(sheet.shapes, self._parts, strict=True)]
        more: dict[str, Any] = {"usage": self._usage.as_json()}
        if sheet.asked.timings:
            more["timings"] = self._usage.timings()
        return sheet.envelope.around(choices, **more)


async def breathe(part: Part) -> None:
    """Let others have the loop between large parts: sending does not, while buffers have room."""
    if part.size > LARGE:
        await asyncio.sleep(0)
