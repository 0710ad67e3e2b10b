"""/v1/models: the one model that is served, once a node has brought it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.core.errors import Unavailable
from baton.core.model import ModelInfo
from baton.router.calls import Calls
from baton.router.http.errors import json_response
from baton.router.prepare import check_model


def routes(calls: Calls, started_at: int) -> list[Route]:
    """started_at: Unix time that stands for the model's creation."""

    async def every(request: Request) -> Response:
        model = calls.served
        return json_response({"object": "list", "data": [] if model is None else [_model(model)]})

    async def one(request: Request) -> Response:
        check_model(request.path_params["name"], calls.options.served)
        model = calls.served
        if model is None:
            raise Unavailable("no node has joined yet", retry_after_s=1.0)
        return json_response(_model(model))

    def _model(model: ModelInfo) -> dict[str, Any]:
        return {
            "id": calls.options.served,
            "object": "model",
            "created": started_at,
            "owned_by": "baton",
            "max_model_len": model.max_model_len,
        }

    paths: dict[str, Callable[[Request], Any]] = {"/v1/models": every, "/v1/models/{name:path}": one}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()]


def fingerprint(model: ModelInfo) -> str:
    """Equal where the same request with the same seed gives the same tokens."""
    facts = "\n".join(f"{item}={value}" for item, value in sorted(asdict(model.fingerprint).items()))
    return f"fp_{blake2b(facts.encode(), digest_size=6).hexdigest()}"
