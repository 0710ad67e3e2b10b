"""Errors as OpenAI's clients expect them: an HTTP status, and {"error": {message, type, param, code}}.

Codes are the canonical ones in lower case, but where OpenAI's clients look for a name of OpenAI's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from baton.core.errors import BatonError, Code, InternalError, NotFound, PromptTooLong
from baton.router.http.jsons import to_json

STATUSES: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,  # nobody reads it; for metrics, as nginx has it
    Code.INTERNAL: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.FAILED_PRECONDITION: 503,  # of a client's call: the nodes do not fit together
    Code.DEADLINE_EXCEEDED: 504,
}

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class HttpError(Exception):
    """What HTTP itself has a status for, and the core has no error."""

    def __init__(
        self, status: int, message: str, code: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})


def error_object(error: BatonError | HttpError, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The body of an error. names: what a field of the core is called in this API."""
    if isinstance(error, HttpError):
        return _object(error.message, error.status, None, error.code)
    param = _param(error.field, names or {})
    message = f"{param}: {error.message}" if param else error.message
    return _object(message, STATUSES[error.code], param, _code(error))


def error_response(error: BatonError | HttpError, names: Mapping[str, str] | None = None) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, HttpError):
        status = error.status
        headers |= error.headers
    else:
        status = STATUSES[error.code]
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))  # whole seconds (RFC 9110)
            headers["retry-after-ms"] = str(max(0, round(error.retry_after_s * 1e3)))  # OpenAI's clients' own
        if status == 401:
            headers["www-authenticate"] = "Bearer"
    return json_response(error_object(error, names), status, headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(content), status, headers, "application/json")


def internal() -> BatonError:
    """What a client learns of a defect."""
    return InternalError("internal error")


def _object(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _code(error: BatonError) -> str:
    if isinstance(error, NotFound) and error.field == "model":
        return "model_not_found"
    if isinstance(error, PromptTooLong):
        return "context_length_exceeded"
    if error.code is Code.RESOURCE_EXHAUSTED:
        return "rate_limit_exceeded"
    return error.code.value.lower()


def _param(field: str, names: Mapping[str, str]) -> str | None:
    """`stop[2]` is looked up as such, then by its name, the index kept."""
    if field in names:
        return names[field] or None
    bracket = field.find("[")
    if bracket > 0 and field[:bracket] in names:
        return names[field[:bracket]] + field[bracket:]
    return field or None
