"""`build_app()`: the routes of the service, as a Starlette app."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vidette.api import Engine
from vidette.service.bodies import BodyReader
from vidette.service.errors import ErrorBody, ErrorDetail
from vidette.service.gate import Gate
from vidette.service.health import HealthChecks
from vidette.service.limits import ServiceLimits
from vidette.service.native import Native
from vidette.service.openai import OpenAI
from vidette.service.responses import Answer, Endpoint


def build_app(
    engine: Engine,
    *,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  immutable
    gate: Gate | None = None,
) -> Starlette:
    """Return an ASGI app that serves an engine, on any server, on asyncio and on trio.

    Args:
        engine: an open engine, which outlives the app.
        limits: bounds of the service.
        gate: what the server closes when it stops; None makes one that stays open.
    """
    inside = gate if gate is not None else Gate()
    bodies = BodyReader(limits)
    openai = OpenAI(engine, limits)
    native = Native(engine)
    health = HealthChecks(engine, limits)
    always = Gate()  # how the engine is can be asked while the server stops, too

    def route(path: str, method: str, answer: Answer, gate: Gate = inside) -> Route:
        endpoint = Endpoint(answer, gate=gate, bodies=bodies, limits=limits, stopping=inside)
        return Route(path, endpoint, methods=[method])

    app = Starlette(
        routes=[
            route("/health", "GET", health.answer),
            route("/health/live", "GET", health.live, always),
            route("/health/progress", "GET", health.progress, always),
            route("/health/ready", "GET", health.ready),
            route("/health_generate", "GET", health.ready),
            route("/generate", "POST", native.generate),
            route("/v1/chat/completions", "POST", openai.chat_completions),
            route("/v1/models", "GET", openai.list_models),
            route("/v1/models/{id:path}", "GET", openai.show_model),
        ],
        exception_handlers={HTTPException: _answer_no_route},
    )
    app.router.redirect_slashes = False
    return app


def _answer_no_route(request: Request, error: Exception) -> Response:
    """Answer what the router refuses in the shape of all other errors."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:80]
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not take {method}; it takes {allowed}", "method_not_allowed"
    else:
        message, code = f"there is nothing at {path}", "not_found"
    body = ErrorBody(ErrorDetail(message, "invalid_request_error", code=code))
    return Response(
        msgspec.json.encode(body),
        status_code=error.status_code,
        headers=error.headers,
        media_type="application/json",
    )
