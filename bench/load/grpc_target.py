"""Baton's own API as a target."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import grpc

from baton.bench.load.plan import Shot
from baton.bench.load.record import Outcome, Record
from baton.bench.load.target import Call, Clock, Facts, Options
from baton.core.errors import BatonError, Code, Unavailable
from baton.proto.v1 import admin_pb2, admin_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc
from baton.runtime import codec
from baton.runtime.client import convert
from baton.runtime.client.aio import AsyncClient
from baton.runtime.grpc_channel import channel

OPEN_TIMEOUT_S = 10.0
ENDED = (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH)

_OUTCOMES: Mapping[Code, Outcome] = {
    Code.RESOURCE_EXHAUSTED: Outcome.REJECTED,
    Code.DEADLINE_EXCEEDED: Outcome.TIMEOUT,
    Code.INVALID_ARGUMENT: Outcome.BAD_REQUEST,
    Code.NOT_FOUND: Outcome.BAD_REQUEST,
    Code.FAILED_PRECONDITION: Outcome.BAD_REQUEST,
    Code.UNAUTHENTICATED: Outcome.BAD_REQUEST,
    Code.PERMISSION_DENIED: Outcome.BAD_REQUEST,
    Code.UNIMPLEMENTED: Outcome.BAD_REQUEST,
}


class GrpcTarget:
    """`grpc://host:port`."""

    def __init__(self, name: str, url: str, options: Options) -> None:
        self.name = name
        self.url = url
        self.chat = False
        self._address = url.removeprefix("grpc://").rstrip("/")
        self._options = options
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def open(self) -> Facts:
        async with AsyncClient(self._address) as client:
            models = await client.models(timeout_s=OPEN_TIMEOUT_S)
        self._channel = channel(self._address)
        await asyncio.wait_for(self._channel.channel_ready(), OPEN_TIMEOUT_S)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        wanted = [model for model in models if self._options.model in ("", model.name)]
        if not wanted:
            raise Unavailable(f"{self.url} serves no model {self._options.model}".rstrip())
        model = wanted[0]
        return Facts(model.name, model.vocab_size, model.max_model_len, *await self._deployment())

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    async def _deployment(self) -> tuple[dict[str, int], list[dict[str, int]], dict[str, Any]]:
        """Nodes by role, the same for each host, the router's settings."""
        assert self._channel is not None
        admin: Any = admin_pb2_grpc.AdminStub(self._channel)
        try:
            cluster = await admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=OPEN_TIMEOUT_S)
            config = await admin.GetConfig(admin_pb2.GetConfigRequest(), timeout=OPEN_TIMEOUT_S)
        except grpc.RpcError:
            return {}, [], {}  # not for everyone's eyes
        hosts: dict[str, Counter[str]] = {}
        for node in cluster.nodes:
            if node.state == "up":
                role = codec.role_from_proto(node.load.role).value
                hosts.setdefault(node.registration.host_id, Counter())[role] += 1
        total = sum(hosts.values(), Counter[str]())
        router = json.loads(config.json or "{}").get("router", {})
        return dict(total), [dict(roles) for roles in hosts.values()], router

    def prepare(self, shot: Shot) -> Call:
        options = self._options
        prompt = shot.write()
        words = prompt.text if options.as_text else None
        asked = {
            "max_tokens": shot.output_tokens,
            "ignore_eos": options.ignore_eos,
            "temperature": options.temperature,
            "seed": options.seed + shot.number,
            "ttft_slo_s": shot.slo.ttft_s,
            "tpot_slo_s": shot.slo.tpot_s,
            "priority": shot.priority,
        }
        given = prompt.token_ids if words is None else words
        request = convert.request(given, convert.options_of(asked), options.model)

        async def call(record: Record, clock: Clock) -> None:
            answer = _Answer(record)
            sent = self._stub.Generate(request)
            try:
                async for message in sent:
                    answer.add(message, clock())
                answer.end()
            except grpc.RpcError as error:
                answer.failed(convert.error_of(error, self._address))
            finally:
                sent.cancel()  # frees the nodes, should it not be over

        return call


class _Answer:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._ended = False

    def add(self, message: inference_pb2.GenerateResponse, now_s: float) -> None:
        """The message as it is: what the client library makes of it takes time that others need."""
        record = self._record
        if tokens := len(message.token_ids):
            record.chunks.append((now_s, tokens))
            record.output_tokens += tokens
        if message.finish_reason in ENDED:
            self._ended = True
        if message.HasField("usage"):
            record.used_prompt_tokens = message.usage.prompt_tokens
            record.cached_tokens = message.usage.cached_tokens

    def end(self) -> None:
        if self._ended:
            self._record.outcome = Outcome.OK
        else:
            self._record.outcome = Outcome.DISCONNECTED
            self._record.error = "the stream ended without a finish reason"

    def failed(self, error: BatonError) -> None:
        record = self._record
        record.error = str(error)
        record.retry_after_s = error.retry_after_s
        record.outcome = self._kind(error)

    def _kind(self, error: BatonError) -> Outcome:
        if error.code is not Code.UNAVAILABLE:
            return _OUTCOMES.get(error.code, Outcome.SERVER_ERROR)
        if error.retry_after_s is not None and not self._record.chunks:
            return Outcome.REJECTED
        return Outcome.UNREACHABLE if error.message.startswith("nothing answers") else Outcome.DISCONNECTED
