"""Any server with OpenAI's HTTP API as a target: /v1/completions and /v1/chat/completions, streamed.

aiohttp, for it costs a third of the processor time per streamed piece that httpx does, and a generator shares
its cores with what it measures.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from baton.bench.load.openai_answer import Answer, refused
from baton.bench.load.plan import Shot
from baton.bench.load.record import Outcome, Record
from baton.bench.load.sse import SseError
from baton.bench.load.target import Call, Clock, Facts, Options
from baton.core.errors import InvalidArgument, Unavailable
from baton.core.request import Slo

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 2.0
"""An idle connection is used again within this time only: servers close them after 5 s and more, and a
request sent just then would seem to have failed."""

_ENDPOINT = re.compile(r"(/v1)?(/(?P<chat>chat/)?completions)?/?$")


class OpenAiTarget:
    """`http://host:port` (completions), or the whole address of one of both endpoints."""

    def __init__(self, name: str, url: str, options: Options) -> None:
        parts = urlsplit(url)
        found = _ENDPOINT.search(parts.path)
        assert found is not None  # it matches nothing, too
        self.name = name
        self.chat = found["chat"] is not None
        base = f"{parts.scheme}://{parts.netloc}{parts.path[: found.start()]}/v1"
        self.url = f"{base}/{'chat/' if self.chat else ''}completions"
        self._models_url = f"{base}/models"
        self._options = options
        self._model = options.model
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> Facts:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers=self._options.headers,
        )
        try:
            facts = await self._facts(self._http)
        except (aiohttp.ClientError, TimeoutError) as error:
            await self._http.close()
            raise Unavailable(f"nothing answers at {self.url}: {error}") from None
        self._model = self._options.model or facts.model
        return facts

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def prepare(self, shot: Shot) -> Call:
        http = self._http
        assert http is not None, "not open"
        body = json.dumps(self._body(shot)).encode()
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            **_slo_headers(shot.slo),
        }

        async def call(record: Record, clock: Clock) -> None:
            try:
                async with http.post(self.url, data=body, headers=headers) as response:
                    await _read(response, record, clock)
            except aiohttp.ClientError as error:
                record.outcome, record.error = _kind(error), _words(error)
            except (TimeoutError, OSError) as error:
                record.outcome, record.error = Outcome.UNREACHABLE, _words(error)

        return call

    def _body(self, shot: Shot) -> dict[str, Any]:
        options, prompt = self._options, shot.write()
        words = prompt.text if self.chat or options.as_text else None
        if self.chat and words is None:
            raise InvalidArgument("a chat is made of words: give --tokenizer", field="target")
        body: dict[str, Any] = {"model": self._model} if self._model else {}
        if self.chat:
            body["messages"] = [{"role": "user", "content": words}]
        else:
            body["prompt"] = list(prompt.token_ids) if words is None else words
        body |= {
            "max_tokens": shot.output_tokens,
            "temperature": options.temperature,
            "seed": options.seed + shot.number,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.ignore_eos:  # vLLM's, llama.cpp's, OpenVINO's and SGLang's name for it
            body["ignore_eos"] = True
        return body | options.body

    async def _facts(self, http: aiohttp.ClientSession) -> Facts:
        """A server without a list of models is fine."""
        async with http.get(self._models_url) as response:
            try:
                listed = json.loads(await response.read())["data"]
                by_name = {str(model["id"]): model for model in listed}
            except (ValueError, KeyError, TypeError):
                return Facts(self._options.model)
        name = self._options.model or next(iter(by_name), "")
        length = by_name.get(name, {}).get("max_model_len")
        return Facts(name, None, length if isinstance(length, int) else None)


async def _read(response: aiohttp.ClientResponse, record: Record, clock: Clock) -> None:
    if response.status != 200:
        head = await response.content.read(4096)
        refused(record, response.status, response.headers.get("Retry-After"), head)
        return
    answer = Answer(record)
    if response.content_type != "text/event-stream":
        answer.malformed(f"the answer is {response.content_type}, not an event stream")
        return
    try:
        async for piece in response.content.iter_any():
            answer.feed(piece, clock())
            if answer.over:
                return
        answer.end()
    except SseError as error:
        answer.malformed(str(error))


def _slo_headers(slo: Slo) -> dict[str, str]:
    """Names of the Gateway API inference extension; servers that know nothing of them ignore them."""
    found = {}
    if slo.ttft_s is not None:
        found["x-slo-ttft-ms"] = f"{slo.ttft_s * 1e3:g}"
    if slo.tpot_s is not None:
        found["x-slo-tpot-ms"] = f"{slo.tpot_s * 1e3:g}"
    return found


def _kind(error: aiohttp.ClientError) -> Outcome:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return Outcome.UNREACHABLE
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.InvalidURL)):
        return Outcome.MALFORMED
    return Outcome.DISCONNECTED


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
