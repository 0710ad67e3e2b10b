"""The HTTP front as one ASGI application: every route, behind the edge."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from baton.router.calls import Calls
from baton.router.http import models, probes, requests
from baton.router.http.edge import Edge, OnRequest
from baton.router.http.fields import ChatBody, CompletionBody
from baton.router.http.generate import Generate
from baton.router.http.keys import ApiKeys
from baton.router.http.shapes import ChatChoice, CompletionChoice


def http_app(
    calls: Calls,
    trouble: Callable[[], str],
    registry: CollectorRegistry,
    keys: ApiKeys,
    on_request: OnRequest,
) -> ASGIApp:
    """trouble: why no request could be served now, "" where one could."""
    completions = Generate(calls, CompletionBody, requests.completion, CompletionChoice)
    chats = Generate(calls, ChatBody, requests.chat, ChatChoice)
    routes = [
        Route("/v1/completions", completions, methods=["POST"], name="completions"),
        Route("/v1/chat/completions", chats, methods=["POST"], name="chat"),
        *models.routes(calls, int(time.time())),
        *probes.routes(trouble, registry),
    ]
    return Edge(Router(routes, redirect_slashes=False), keys, on_request, lambda: f"req-{uuid.uuid4().hex}")
