"""OpenVINO GenAI's continuous batching behind OpenAI's /v1/completions: it has no server of its own.

Runs in an environment of its own; see peers_live.py. One thread does nothing but steps; requests come and
tokens go between them. Prompts are token ids, and the words sent are ids, too: detokenizing is spared.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino
import uvicorn
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route


@dataclass(eq=False)
class Asked:
    ids: list[int]
    max_tokens: int
    left: int
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[list[int]] = field(default_factory=asyncio.Queue)
    cancelled: bool = False


class Engine:
    def __init__(self, model: str, threads: int, group: str) -> None:
        """group: inputs whose rounded activations share a scale; 0: they are not rounded."""
        scheduler = SchedulerConfig()  # its own default: prompts in pieces of 256 tokens beside decode
        scheduler.cache_size = 2  # GB
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
        }
        self._pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._live: dict[Asked, Any] = {}
        self._numbers = 0
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, asked: Asked) -> None:
        self._asked.put(asked)

    def _run(self) -> None:
        while True:
            while self._admit(wait=not self._live):
                pass
            for asked in [asked for asked in self._live if asked.cancelled]:
                self._live.pop(asked).cancel()
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            self._tell()

    def _admit(self, *, wait: bool) -> bool:
        try:
            asked = self._asked.get(block=wait)
        except queue.Empty:
            return False
        config = GenerationConfig(
            max_new_tokens=asked.max_tokens, min_new_tokens=asked.max_tokens, ignore_eos=True
        )
        prompt = openvino.Tensor(np.array([asked.ids], dtype=np.int64))
        self._numbers += 1
        self._live[asked] = self._pipeline.add_request(self._numbers, prompt, config)
        return True

    def _tell(self) -> None:
        for asked, handle in list(self._live.items()):
            while handle.can_read():
                new = [token for output in handle.read().values() for token in output.generated_ids]
                asked.left -= len(new)
                asked.loop.call_soon_threadsafe(asked.tokens.put_nowait, new)
            if asked.left <= 0:
                del self._live[asked]


async def answer(asked: Asked) -> AsyncIterator[str]:
    made = 0
    try:
        while made < asked.max_tokens:
            new = await asked.tokens.get()
            made += len(new)
            reason = "length" if made >= asked.max_tokens else None
            yield _event(choices=[{"index": 0, "text": f" {new}", "finish_reason": reason}])
    finally:
        asked.cancelled = True
    used = {"prompt_tokens": len(asked.ids), "completion_tokens": made, "total_tokens": len(asked.ids) + made}
    yield _event(choices=[], usage=used)
    yield "data: [DONE]\n\n"


def _event(**fields: Any) -> str:
    return f"data: {json.dumps({'object': 'text_completion', **fields})}\n\n"


def app(engine: Engine) -> Starlette:
    async def complete(request: Request) -> StreamingResponse:
        body = await request.json()
        tokens = body["max_tokens"]
        asked = Asked(body["prompt"], tokens, tokens, asyncio.get_running_loop())
        engine.ask(asked)
        return StreamingResponse(answer(asked), media_type="text/event-stream")

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "model", "object": "model"}]})

    routes = [Route("/v1/completions", complete, methods=["POST"]), Route("/v1/models", models)]
    return Starlette(routes=routes)


def main() -> None:
    model, threads, group, port = sys.argv[1:]
    engine = Engine(model, int(threads), group)
    uvicorn.run(app(engine), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
