"""A router with stub nodes, called over HTTP: by OpenAI's own client, and by a plain one.

async with http_router(StubNode()) as front:
    answer = await front.openai.completions.create(model="stub", prompt="hi")
    response = await front.post("/v1/completions", {"prompt": "hi"})
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI

from baton.router.http.server import HttpOptions
from tests.fakes import Cluster, StubNode, router_with

USER = [{"role": "user", "content": "hi"}]


@dataclass
class Front:
    cluster: Cluster
    openai: AsyncOpenAI
    plain: httpx2.AsyncClient

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """body: what becomes JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.plain.post(path, content=data, headers={"content-type": "application/json"} | named)


@contextlib.asynccontextmanager
async def http_router(
    *nodes: StubNode, options: HttpOptions | None = None, **settings: Any
) -> AsyncIterator[Front]:
    async with router_with(*nodes, http=options or HttpOptions(), **settings) as cluster:
        url = f"http://{cluster.app.http_address}"
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
            httpx2.AsyncClient(base_url=url, timeout=20) as plain,
        ):
            yield Front(cluster, openai, plain)


def events(text: str) -> list[Any]:
    """The data of server-sent events; [DONE] as it stands."""
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [item if item == "[DONE]" else json.loads(item) for item in data]
