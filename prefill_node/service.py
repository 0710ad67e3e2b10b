"""The PrefillNode service: takes requests in; everything after that goes by the router's Attach stream."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import grpc

from baton.core.errors import FailedPrecondition, InvalidArgument
from baton.core.model import ModelInfo
from baton.core.node_effects import Key
from baton.core.prefix import HASH_BYTES
from baton.core.request import Request
from baton.kv_transfer.layout import KvLayout
from baton.prefill_node.fetcher import Lender
from baton.prefill_node.link import Target
from baton.proto.v1 import prefill_node_pb2 as pb
from baton.proto.v1.prefill_node_pb2_grpc import PrefillNodeServicer
from baton.runtime import checks, codec


class PrefillPort(Protocol):
    def arriving(self, key: Key) -> AbstractContextManager[None]:
        """While a request is being read: an abort that overtakes it then still finds it."""

    def prefill(self, router_id: str, request: Request, target: Target, lender: Lender | None = None) -> None:
        """Take the request, or raise a BatonError that says why not."""

    async def lend(self, key: Key, target: Target, keys: tuple[bytes, ...]) -> int:
        """Tokens that `target` has now; BatonError: none, and why."""


MAX_KEYS = 2**20
MAX_PATIENCE_S = 3600.0


class PrefillService(PrefillNodeServicer):
    """fetch: whether KV is fetched from other nodes, and lent to them."""

    def __init__(self, model: ModelInfo, layout: KvLayout, port: PrefillPort, *, fetch: bool) -> None:
        self._model = model
        self._layout = layout
        self._port = port
        self._fetch = fetch

    async def Prefill(
        self, request: pb.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> pb.PrefillResponse:
        """INVALID_ARGUMENT names the field; RESOURCE_EXHAUSTED, UNAVAILABLE: not taken, try elsewhere."""
        router_id = checks.printable("router_id", request.router_id, least=1)
        if not request.HasField("decode"):
            raise InvalidArgument("is missing", field="decode")
        target = _target("decode", request.decode)
        lender = _lender(request) if self._fetch and request.fetch.tokens else None
        with self._port.arriving((request.request.id, request.request.attempt)):
            sequence = await codec.checked_request(request.request, self._model)
            self._port.prefill(router_id, sequence, target, lender)
        return pb.PrefillResponse()

    async def Lend(self, request: pb.LendRequest, context: grpc.aio.ServicerContext) -> pb.LendResponse:
        """INVALID_ARGUMENT names the field; the rest as the protocol says."""
        layout = self._layout
        if not self._fetch:
            raise FailedPrecondition("transfer.fetch is off at this node")
        for item, here, there in (
            ("block_size", layout.block_size, request.block_size),
            ("kv_dtype", layout.dtype, request.kv_dtype),
        ):
            if here != there:
                raise FailedPrecondition(f"{item} is {here} here, {there} there")
        key = (checks.printable("request_id", request.request_id, least=1), request.attempt)
        target = _target("target", request.target)
        tokens = await self._port.lend(key, target, _keys(request.keys))
        return pb.LendResponse(tokens=tokens)


def _lender(request: pb.PrefillRequest) -> Lender:
    fetch = request.fetch
    most = len(request.request.prompt_ids) + len(request.request.output_ids)
    tokens = min(fetch.tokens, most)
    patience_s = checks.finite("fetch.patience_s", fetch.patience_s)
    return Lender(_target("fetch", fetch), tokens, min(patience_s, MAX_PATIENCE_S))


def _target(field: str, named: pb.DecodeTarget | pb.Fetch) -> Target:
    return Target(
        checks.printable(f"{field}.node_id", named.node_id, least=1),
        checks.printable(f"{field}.incarnation", named.incarnation, least=1),
        checks.printable(f"{field}.address", named.address, most=512),
    )


def _keys(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    checks.count("keys", keys, MAX_KEYS)
    if not keys or any(len(key) != HASH_BYTES for key in keys):
        raise InvalidArgument(f"must be keys of {HASH_BYTES} bytes", field="keys")
    return tuple(keys)
