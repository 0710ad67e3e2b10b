"""What every RPC of every server goes through: size checked, errors made statuses, each RPC counted once.

A BatonError becomes its own status. Anything else is a defect: it is logged with its traceback, and the
caller learns only that it was internal. A request beyond the limit is not even parsed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from baton.core.errors import BatonError, InternalError, InvalidArgument, Unavailable
from baton.runtime import grpc_errors

log = structlog.get_logger(__name__)

OnRpc = Callable[[str, str], None]
"""Called at an RPC's end: method ("package.Service/Method", one that is served), status name."""

Behaviour = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _TooLarge:
    """Stands for a request that was not parsed."""

    size_bytes: int


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """max_message_bytes: requests of more are refused with INVALID_ARGUMENT (those of streams, which only
    our own processes send, are left to gRPC's own limit)."""

    def __init__(self, max_message_bytes: int, on_rpc: OnRpc | None = None) -> None:
        self._max_message_bytes = max_message_bytes
        self._on_rpc = on_rpc or (lambda method, code: None)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        kind, make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        parse = handler.request_deserializer
        wrapped = self._wrap(handler_call_details.method.removeprefix("/"), getattr(handler, kind))
        rewrapped: grpc.RpcMethodHandler[Any, Any] = make(
            wrapped,
            request_deserializer=parse if handler.request_streaming else self._within_limit(parse),
            response_serializer=handler.response_serializer,
        )
        return rewrapped

    def _within_limit(self, parse: Any) -> Callable[[bytes], Any]:
        limit = self._max_message_bytes
        return lambda data: parse(data) if len(data) <= limit else _TooLarge(len(data))

    def _check(self, request: Any) -> None:
        if isinstance(request, _TooLarge):
            raise InvalidArgument(
                f"has {request.size_bytes} bytes, the limit is {self._max_message_bytes}", field="message"
            )

    def _wrap(self, method: str, inner: Behaviour) -> Behaviour:
        if inspect.isasyncgenfunction(inner):

            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                guard = _Guard(self._on_rpc, method, context)
                try:
                    self._check(request)
                    async for response in inner(request, context):
                        yield response
                except BaseException as error:
                    await guard.failed(error)
                    raise
                finally:
                    guard.ended()

            return generate

        async def call(request: Any, context: Any) -> Any:
            guard = _Guard(self._on_rpc, method, context)
            try:
                self._check(request)
                return await inner(request, context)
            except BaseException as error:
                await guard.failed(error)
                raise
            finally:
                guard.ended()

        return call


class _Guard:
    """One RPC's bookkeeping."""

    def __init__(self, on_rpc: OnRpc, method: str, context: Any) -> None:
        self._on_rpc = on_rpc
        self._method = method
        self._context = context
        self._code = "OK"

    def ended(self) -> None:
        self._on_rpc(self._method, self._code)

    async def failed(self, error: BaseException) -> None:
        """Give the caller a status for `error`; returns only if one is set already or the caller is gone."""
        if isinstance(error, grpc.aio.AbortError):
            self._code = grpc.StatusCode(self._context.code()).name if self._context.code() else "UNKNOWN"
        elif isinstance(error, BatonError):
            self._code = error.code.value
            await grpc_errors.abort(self._context, error)
        elif isinstance(error, asyncio.CancelledError):
            await self._cancelled()
        elif isinstance(error, grpc.aio.BaseError):
            # The stream broke under the handler, or the server stops: there is nobody left to tell.
            self._code = "UNAVAILABLE"
            raise asyncio.CancelledError from error
        elif isinstance(error, Exception):
            self._code = "INTERNAL"
            log.exception("rpc failed", method=self._method, exc_info=error)
            await grpc_errors.abort(self._context, InternalError("internal error"))

    async def _cancelled(self) -> None:
        """The caller went away, or this side cancelled the handler: then it owes the caller a status.

        gRPC does not say which (neither `done()` nor `cancelled()` is true yet when the caller left), so the
        status is sent in both cases; where nobody is left to read it, that fails without harm.
        """
        self._code = "CANCELLED"
        await grpc_errors.abort(self._context, Unavailable("the server ended the call", retry_after_s=1.0))


_KINDS: dict[tuple[bool, bool], tuple[str, Callable[..., Any]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
