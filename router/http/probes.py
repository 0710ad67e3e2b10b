"""Health, metrics and version beside the API. Where several routers share the port, one of them answers."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from baton import __version__
from baton.router.http.errors import json_response


def routes(trouble: Callable[[], str], registry: CollectorRegistry) -> list[Route]:
    """trouble: why no request could be served now, "" where one could."""

    async def live(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        why = trouble()
        return PlainTextResponse(f"{why or 'ok'}\n", 503 if why else 200)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    async def version(request: Request) -> Response:
        return json_response({"version": __version__})

    return [
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
    ]
