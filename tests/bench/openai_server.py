"""A small server that speaks OpenAI's streaming API by a script, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class Script:
    """How every answer goes. first_s, step_s: before the first and each later piece. tokens_per_piece: said
    by usage only. stall_from, stall_s: no piece leaves from the stall_from-th request on until stall_s have
    passed. break_after: pieces before the connection is cut. raw: sent in place of an answer. status: of an
    answer that is an error. usage: whether the last piece says how many tokens there were."""

    first_s: float = 0.0
    step_s: float = 0.0
    tokens_per_piece: int = 1
    stall_from: int | None = None
    stall_s: float = 0.0
    break_after: int | None = None
    raw: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    usage: bool = True
    done: bool = True


@dataclass
class Server:
    url: str
    script: Script
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    stall_until: float | None = None

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "max_model_len": 4096}]})

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, lambda text: {"index": 0, "text": text, "finish_reason": None})

    async def chat(self, request: Request) -> Response:
        return await self._answer(
            request, lambda text: {"index": 0, "delta": {"content": text}, "finish_reason": None}
        )

    async def _answer(self, request: Request, choice: Any) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        script = self.script
        if script.status != 200:
            error = {"error": {"message": "not now", "type": "busy"}}
            return JSONResponse(error, script.status, headers=script.headers)
        if script.raw is not None:
            return Response(script.raw, media_type="text/event-stream")
        return StreamingResponse(self._stream(body, choice), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], choice: Any) -> AsyncIterator[bytes]:
        script, number, loop = self.script, len(self.bodies), asyncio.get_running_loop()
        if script.stall_from is not None and number >= script.stall_from:
            self.stall_until = self.stall_until or loop.time() + script.stall_s
            await asyncio.sleep(self.stall_until - loop.time())
        await asyncio.sleep(script.first_s)
        if "messages" in body:
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        pieces = -(-body["max_tokens"] // script.tokens_per_piece)
        for place in range(pieces):
            if place:
                await asyncio.sleep(script.step_s)
            if place == script.break_after:
                raise ConnectionAbortedError
            yield event({"choices": [choice(f" w{place}")]})
        yield event({"choices": [choice("") | {"finish_reason": "length"}]})
        if script.usage:
            used = {"prompt_tokens": 7, "completion_tokens": body["max_tokens"], "total_tokens": 0}
            yield event({"choices": [], "usage": used})
        if script.done:
            yield b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Server]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}", script)
        config = uvicorn.Config(server.app(), log_level="critical", lifespan="off", ws="none")
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            yield server
        finally:
            running.should_exit = running.force_exit = True
            await task
