"""The PrefillNode service: takes requests in; everything after that goes by the router's Attach stream."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import grpc

from baton.core.errors import InvalidArgument
from baton.core.model import ModelInfo
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.prefill_node.link import Target
from baton.proto.v1 import prefill_node_pb2 as pb
from baton.proto.v1.prefill_node_pb2_grpc import PrefillNodeServicer
from baton.runtime import checks, codec


class PrefillPort(Protocol):
    def arriving(self, key: Key) -> AbstractContextManager[None]:
        """While a request is being read: an abort that overtakes it then still finds it."""

    def prefill(self, router_id: str, request: Request, target: Target) -> None:
        """Take the request, or raise a BatonError that says why not."""


class PrefillService(PrefillNodeServicer):
    def __init__(self, model: ModelInfo, port: PrefillPort) -> None:
        self._model = model
        self._port = port

    async def Prefill(
        self, request: pb.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> pb.PrefillResponse:
        """INVALID_ARGUMENT names the field; RESOURCE_EXHAUSTED, UNAVAILABLE: not taken, try elsewhere."""
        router_id = checks.printable("router_id", request.router_id, least=1)
        if not request.HasField("decode"):
            raise InvalidArgument("is missing", field="decode")
        target = Target(
            checks.printable("decode.node_id", request.decode.node_id, least=1),
            checks.printable("decode.incarnation", request.decode.incarnation, least=1),
            checks.printable("decode.address", request.decode.address, most=512),
        )
        with self._port.arriving((request.request.id, request.request.attempt)):
            sequence = await codec.checked_request(request.request, self._model)
            self._port.prefill(router_id, sequence, target)
        return pb.PrefillResponse()
