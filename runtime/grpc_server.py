"""The one way in which Baton's processes serve gRPC: options, health, reflection, errors, a clear end.

Health follows https://github.com/grpc/grpc/blob/master/doc/health-checking.md: "" stands for the whole
process, each service has its own entry, Watch is told of every change.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from baton.core.errors import FailedPrecondition
from baton.runtime.addresses import join_address
from baton.runtime.grpc_channel import TransportOptions, channel, sync_channel
from baton.runtime.grpc_interceptor import EdgeInterceptor, OnRpc

__all__ = ["BindError", "GrpcServer", "ServerOptions", "TransportOptions", "channel", "sync_channel"]

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
MAX_CONCURRENT_RPCS = 100_000


class BindError(FailedPrecondition):
    """The address cannot be listened on; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """port 0: the kernel chooses. reuse_port: only where several processes serve one port."""

    host: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    transport: TransportOptions = field(default_factory=TransportOptions)


class GrpcServer:
    """A grpc.aio server. `add` services, `start`, `set_serving`, `stop`; all on one event loop. on_rpc: told
    of every RPC at its end."""

    def __init__(self, options: ServerOptions, *, on_rpc: OnRpc | None = None) -> None:
        self._options = options
        self._server = grpc.aio.server(
            interceptors=[EdgeInterceptor(options.transport.max_message_bytes, on_rpc)],
            options=options.transport.server(reuse_port=options.reuse_port),
            maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS,
        )
        self._health = health.aio.HealthServicer()
        self._services: list[str] = []
        self._serving: bool | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """host:port that was bound."""
        return join_address(self._options.host, self.port)

    def add(self, service: str, register: Callable[[Any, Any], None], servicer: Any) -> None:
        """Serve `service` (its full name) by `servicer`; register: the generated add_..._to_server."""
        register(servicer, self._server)
        self._services.append(service)

    async def start(self) -> int:
        """Bind and serve; returns the port. Health says NOT_SERVING until `set_serving(True)`. BindError."""
        names = [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION_V1]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(names, self._server)
        self._server.add_generic_rpc_handlers((_reflection_v1(names),))
        await self.set_serving(False)
        address = join_address(self._options.host, self._options.port)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise BindError(_why_not(self._options, error), field="port") from None
        if not self.port:
            raise BindError(_why_not(self._options, None), field="port")
        await self._server.start()
        return self.port

    async def set_serving(self, serving: bool) -> None:
        """Tell health, and all who watch it. A no-op when nothing changed."""
        if serving == self._serving:
            return
        self._serving = serving
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._services):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new RPCs, give those under way `grace_s`, then cancel them. Idempotent."""
        await self.set_serving(False)
        await self._server.stop(grace_s)


def _reflection_v1(names: list[str]) -> grpc.GenericRpcHandler[Any, Any]:
    """Reflection under its final name; the messages are those of v1alpha, all that the library has."""
    servicer = reflection.aio.ReflectionServicer(names)
    return grpc.method_handlers_generic_handler(
        REFLECTION_V1,
        {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                servicer.ServerReflectionInfo,
                request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
                response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
            )
        },
    )


def _why_not(options: ServerOptions, error: Exception | None) -> str:
    """gRPC keeps the reason to its log: ask the kernel again."""
    reason = str(error or "unknown reason")
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((options.host.strip("[]"), options.port))
            probe.listen(1)
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return f"cannot listen on port {options.port} of {options.host}: {reason}"
