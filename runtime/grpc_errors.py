"""BatonError on gRPC's wire and back: a canonical status with google.rpc details.

https://google.aip.dev/193: INVALID_ARGUMENT carries BadRequest naming the field, errors worth retrying carry
RetryInfo. Peers that send no details are understood by their code alone.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from baton.core.errors import (
    BatonError,
    Cancelled,
    Code,
    DeadlineExceeded,
    InvalidArgument,
    Unavailable,
    error_for,
)

_GRPC_CODES: dict[str, grpc.StatusCode] = {code.name: code for code in grpc.StatusCode}
# Codes that Baton never raises by itself, read as what they mean to a caller.
_FOREIGN = {"UNKNOWN": Code.INTERNAL, "DATA_LOSS": Code.INTERNAL, "ABORTED": Code.UNAVAILABLE}

# What gRPC says by itself, without any peer, when a connection breaks (its texts differ between versions).
_BROKEN = re.compile(
    r"stream removed|socket closed|connection reset|broken pipe|goaway|transport closed|ping timeout|"
    r"keepalive|end of tcp stream|recvmsg|sendmsg",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(r"failed to connect|connection refused|dns resolution", re.IGNORECASE)


def grpc_code(code: Code) -> grpc.StatusCode:
    return _GRPC_CODES[code.name]


def to_status(error: BatonError) -> status_pb2.Status:
    """The google.rpc.Status of an error, details packed."""
    details: list[any_pb2.Any] = []
    if error.field:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.field, description=error.message)
        details.append(_packed(bad))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(max(0, round(error.retry_after_s * 1e3)))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=grpc_code(error.code).value[0], message=str(error), details=details)


async def abort(context: grpc.aio.ServicerContext[object, object], error: BatonError) -> NoReturn:
    """End the RPC with the error's status."""
    status = rpc_status.to_status(to_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort returned")


def told_to_client(error: grpc.RpcError, address: str) -> BatonError:
    """As `from_rpc_error`, and what gRPC says by itself in the words that Baton has for it."""
    code, message = error.code(), error.details() or ""
    if _details(error):  # only Baton sends them
        return from_rpc_error(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and "deadline exceeded" in message.lower():
        return DeadlineExceeded("the deadline passed")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
        if _UNREACHABLE.search(message):
            return Unavailable(f"nothing answers at {address}")
        if _BROKEN.search(message):
            return Unavailable(f"the connection to {address} broke")
    if code is grpc.StatusCode.CANCELLED and "ancelled by application" in message:
        return Cancelled("cancelled by the client")
    return from_rpc_error(error)


def from_rpc_error(error: grpc.RpcError) -> BatonError:
    """What a peer's status says, as the error it was raised as there."""
    code, message = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in message:
        return InvalidArgument(f"over the limit on a message's bytes ({message})", field="message")
    field, retry_after_s = "", None
    for detail in _details(error):
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            if bad.field_violations:
                field = bad.field_violations[0].field
                message = bad.field_violations[0].description or message
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1e3
    return error_for(_code(code), message, field=field, retry_after_s=retry_after_s)


def _packed(message: error_details_pb2.BadRequest | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _code(code: grpc.StatusCode) -> Code:
    try:
        return _FOREIGN.get(code.name) or Code(code.name)
    except ValueError:
        return Code.INTERNAL


def _details(error: grpc.RpcError) -> list[any_pb2.Any]:
    """Packed details in the trailing metadata; none if they are missing or not readable."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == "grpc-status-details-bin":
            try:
                return list(status_pb2.Status.FromString(value).details)
            except Exception:
                return []
    return []
