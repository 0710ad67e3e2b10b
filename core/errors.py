"""Errors that a client or an operator may see. Each knows the gRPC status it becomes at the edge.

The codes are the canonical gRPC ones (https://grpc.github.io/grpc/core/md_doc_statuscodes.html); `core`
imports no grpc, so they are spelled out here and mapped by name in `runtime.codec`.
"""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"


class BatonError(Exception):
    """Base of all errors that Baton raises on purpose.

    `field` names the offending request field or config key ("" where none applies), `retry_after_s` is a
    hint for RESOURCE_EXHAUSTED and UNAVAILABLE (None: no hint).
    """

    code = Code.INTERNAL

    def __init__(self, message: str, *, field: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidArgument(BatonError):
    """A request that can never succeed as it stands; `field` names what is wrong with it."""

    code = Code.INVALID_ARGUMENT


class PromptTooLong(InvalidArgument):
    """More tokens than the model's context holds: what clients with a conversation to shorten look for."""


class NotFound(BatonError):
    code = Code.NOT_FOUND


class FailedPrecondition(BatonError):
    """Two parts that do not fit together (an incompatible pair of nodes, say); the item is in the message."""

    code = Code.FAILED_PRECONDITION


class ResourceExhausted(BatonError):
    """Shed: a bounded queue or pool is full. Nothing was done, so trying again later is safe."""

    code = Code.RESOURCE_EXHAUSTED


class Unavailable(BatonError):
    """A peer is draining, dead or unreachable."""

    code = Code.UNAVAILABLE


class DeadlineExceeded(BatonError):
    code = Code.DEADLINE_EXCEEDED


class Cancelled(BatonError):
    code = Code.CANCELLED


class InternalError(BatonError):
    code = Code.INTERNAL


class Unimplemented(BatonError):
    """The peer, or this build, does not know how."""

    code = Code.UNIMPLEMENTED


class Unauthenticated(BatonError):
    code = Code.UNAUTHENTICATED


class PermissionDenied(BatonError):
    code = Code.PERMISSION_DENIED


class IllegalTransition(BatonError):
    """A state machine was given an event its state does not allow. Nothing was changed."""

    code = Code.INTERNAL


_BY_CODE: dict[Code, type[BatonError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotFound,
        FailedPrecondition,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        InternalError,
        Unimplemented,
        Unauthenticated,
        PermissionDenied,
    )
}


def error_for(code: Code, message: str, *, field: str = "", retry_after_s: float | None = None) -> BatonError:
    """Build the error that `code` names: what a peer's status turns back into on this side."""
    return _BY_CODE[code](message, field=field, retry_after_s=retry_after_s)
