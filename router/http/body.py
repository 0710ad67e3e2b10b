"""A request's body: read within the limit, JSON by its label, and then by its fields."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from baton.core.errors import BatonError, Cancelled, InvalidArgument
from baton.router.http.errors import HttpError
from baton.router.http.fields import ChatBody, CompletionBody
from baton.runtime.grpc_channel import REFUSABLE_BYTES

BodyT = TypeVar("BodyT", bound=BaseModel)

READ_TIMEOUT_S = 60.0

_UNION_TAGS = frozenset({"str", "list[str]"})  # pydantic's, between a field and the place inside


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """HttpError: wrong label, too large, too slow. What is somewhat too large is still read, and dropped: a
    client that is cut off while it sends does not see the answer."""
    _check_label(request)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await _read(request, limit_bytes)
    except TimeoutError:
        told = f"the body did not come within {READ_TIMEOUT_S:g} s"
        raise HttpError(408, told, "request_timeout", {"connection": "close"}) from None
    except ClientDisconnect:
        raise Cancelled("the client went away") from None


def parse(data: bytes, kind: type[BodyT]) -> BodyT:
    """InvalidArgument: what is no JSON, with line and column; what is no field, or of the wrong type."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _told(error, kind) from None


def _check_label(request: Request) -> None:
    label, _, rest = request.headers.get("content-type", "").partition(";")
    label = label.strip().lower()
    if label != "application/json":
        told = f"the content type is {label[:64] or 'missing'}, it must be application/json"
        raise HttpError(415, told, "unsupported_media_type")
    charset = rest.lower().partition("charset=")[2].strip(' "')
    if charset not in ("", "utf-8", "utf8"):
        raise HttpError(415, "the body must be UTF-8", "unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "the body must not be compressed", "unsupported_media_type")


async def _read(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    hopeless = limit_bytes + REFUSABLE_BYTES
    waits = "expect" in request.headers
    if declared.isdigit() and (int(declared) > hopeless or (waits and int(declared) > limit_bytes)):
        raise _too_large(f"the body has {declared} bytes", limit_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in _parts(request):
        size += len(part)
        if size <= limit_bytes:
            parts.append(part)
        else:
            parts.clear()
        if size > hopeless:
            break
    if size > limit_bytes:
        raise _too_large(f"the body has {'more than ' if size > hopeless else ''}{size} bytes", limit_bytes)
    return b"".join(parts)


async def _parts(request: Request) -> AsyncIterator[bytes]:
    async for part in request.stream():
        yield part


def _too_large(told: str, limit_bytes: int) -> HttpError:
    told = f"{told}, the limit is {limit_bytes}"
    return HttpError(413, told, "request_too_large", {"connection": "close"})


def _told(error: ValidationError, kind: type[BaseModel]) -> BatonError:
    """The first field's mistake: clients show one. Of the kinds that a field may have, the one that fits best
    has the place furthest inside."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(
        (e for e in found if e["loc"][:1] == found[0]["loc"][:1]), key=lambda e: len(_param(e["loc"]))
    )
    place, message = first["loc"], first["msg"]
    match first["type"]:
        case "json_invalid":
            return InvalidArgument(f"the body is not {message.replace('Invalid', 'valid')}")
        case "extra_forbidden":
            name = str(place[-1])
            hint = _hint(name, kind) if len(place) == 1 else ""
            return InvalidArgument(f"is not a field known here{hint}", field=_param(place))
        case "model_type" if not place:
            return InvalidArgument("the body must be a JSON object")
    return InvalidArgument(message.replace("Input should", "must"), field=_param(place))


def _hint(name: str, kind: type[BaseModel]) -> str:
    """Which endpoint has such a field, else which field is spelt nearly so."""
    for other in (CompletionBody, ChatBody):
        if name in other.model_fields:
            return f"; it is one of {other.path}"
    near = difflib.get_close_matches(name, kind.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _param(place: tuple[int | str, ...]) -> str:
    """`stop[2]`, `stream_options.include_usage`."""
    text = ""
    for part in place:
        if part in _UNION_TAGS:
            continue
        if isinstance(part, int) or (text and part.lstrip("-").isdigit()):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text[:256]
