"""What every HTTP request goes through: named, let in, counted once, and given an answer whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.core.errors import BatonError
from baton.router.http import headers as given
from baton.router.http.connection import ClientGone
from baton.router.http.errors import HttpError, error_response, internal
from baton.router.http.keys import ApiKeys

log = structlog.get_logger(__name__)

OnRequest = Callable[[str, int], None]
"""Called at a request's end: its route ("POST /v1/completions", or "other"), its status."""

GONE = 499
OPEN_PATHS = ("/health/", "/metrics", "/version")


class Edge:
    """inner: the routes. A request keeps its name (x-request-id), and gets one where it has none."""

    def __init__(self, inner: ASGIApp, keys: ApiKeys, on_request: OnRequest, name: Callable[[], str]) -> None:
        self._inner = inner
        self._keys = keys
        self._on_request = on_request
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0
        scope["app"] = self  # starlette's routes then raise HTTPException rather than answer by themselves
        request_id = self._name()

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault(given.REQUEST_ID, request_id)
            await send(message)

        try:
            request_id = given.request_id(Headers(scope=scope)) or request_id
            if not scope["path"].startswith(OPEN_PATHS):
                self._keys.check(Headers(scope=scope))
            await self._inner(scope, receive, named)
        except (ClientGone, asyncio.CancelledError):
            # Cancelled: the server stops, and this connection with it. uvicorn wants no exception.
            status = GONE
        except Exception as error:
            told = _told(error)
            if told is None:
                log.exception("http request failed", path=scope["path"])
            if status:
                raise  # half an answer is out: only breaking off can say so
            await error_response(told or internal())(scope, receive, named)
        finally:
            self._on_request(_route(scope), status)


def _told(error: Exception) -> BatonError | HttpError | None:
    """What the client may know of it; None: it is a defect."""
    if isinstance(error, HTTPException):  # no such path, or not with this method
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        words = "this path knows no such method" if error.status_code == 405 else "there is no such path"
        return HttpError(error.status_code, words, code, error.headers)
    return error if isinstance(error, BatonError | HttpError) else None


def _route(scope: Scope) -> str:
    """Of bounded variety: a label of metrics."""
    route = scope.get("route")
    return f"{scope['method']} {route.path}" if route is not None else "other"
