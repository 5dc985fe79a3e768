"""`build_app()`: the routes of the service, as a Starlette app."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from vidette.api import Engine
from vidette.service.anthropic import ANTHROPIC, Anthropic
from vidette.service.background import Background
from vidette.service.bodies import BodyReader
from vidette.service.control import Control
from vidette.service.door import FrontDoor
from vidette.service.errors import ErrorBody, ErrorDetail
from vidette.service.gate import Gate
from vidette.service.health import HealthChecks
from vidette.service.info import Info
from vidette.service.keys import AdminOnly
from vidette.service.later import LATER, Later
from vidette.service.limits import ServiceLimits
from vidette.service.native import Native
from vidette.service.openai import OpenAI
from vidette.service.openapi import Document
from vidette.service.response_api import Responses
from vidette.service.responses import NAMED_EVENTS, OPENAI, Answer, Dialect, Endpoint
from vidette.service.tokens import Tokens


def build_app(
    engine: Engine,
    *,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  immutable
    gate: Gate | None = None,
    door: FrontDoor | None = None,
) -> Starlette:
    """Return an ASGI app that serves an engine, on any server, on asyncio and on trio.

    Args:
        engine: an open engine, which outlives the app.
        limits: bounds of the service.
        gate: what the server closes when it stops; None makes one that stays open.
        door: who may use it, and what is logged of that; None: everybody, and nothing.
    """
    inside = gate if gate is not None else Gate()
    bodies = BodyReader(limits)
    openai = OpenAI(engine, limits)
    tokens = Tokens(engine, limits, openai)
    background = Background()
    stored = Responses(engine, limits, openai, background)
    anthropic = Anthropic(engine, limits, openai)
    native = Native(engine)
    door = FrontDoor() if door is None else door
    info = Info(engine, limits, door.keys)
    control = Control(engine, limits, door.logs)
    health = HealthChecks(engine, limits)
    always = Gate()  # how the engine is can be asked while the server stops, too

    def route(
        path: str, method: str, answer: Answer, gate: Gate = inside, dialect: Dialect = OPENAI
    ) -> Route:
        endpoint = Endpoint(answer, gate=gate, bodies=bodies, limits=limits, stopping=inside, dialect=dialect)
        return Route(path, endpoint, methods=[method])

    def admin(path: str, answer: Answer) -> Route:
        endpoint = Endpoint(answer, gate=inside, bodies=bodies, limits=limits)
        return Route(path, AdminOnly(endpoint), methods=["POST"])

    routes: list[BaseRoute] = [
        route("/health", "GET", health.answer),
        route("/health/live", "GET", health.live, always),
        route("/health/progress", "GET", health.progress, always),
        route("/health/ready", "GET", health.ready),
        route("/health_generate", "GET", health.ready),
        route("/generate", "POST", native.generate),
        route("/v1/chat/completions", "POST", openai.chat_completions),
        route("/v1/completions", "POST", openai.completions),
        route("/v1/responses", "POST", stored.create, dialect=NAMED_EVENTS),
        route("/v1/responses/{id}", "GET", stored.retrieve),
        route("/v1/responses/{id}", "DELETE", stored.delete),
        route("/v1/responses/{id}/cancel", "POST", stored.cancel),
        route("/v1/messages", "POST", anthropic.messages, dialect=ANTHROPIC),
        route("/v1/messages/count_tokens", "POST", anthropic.count_tokens, dialect=ANTHROPIC),
        route("/tokenize", "POST", tokens.tokenize),
        route("/detokenize", "POST", tokens.detokenize),
        route("/v1/tokenize", "POST", tokens.tokenize),
        route("/v1/detokenize", "POST", tokens.detokenize),
        route("/v1/models", "GET", openai.list_models),
        route("/v1/models/{id:path}", "GET", openai.show_model),
        *(route(path, "GET", answer, always) for path, answer in info.routes().items()),
        *(route(path, "POST", answer) for path, answer in control.client_routes().items()),
        *(admin(path, answer) for path, answer in control.admin_routes().items()),
        *(admin(path, Later(what).answer) for what, paths in LATER.items() for path in paths),
    ]
    document = Document(routes, door.keys)
    routes.append(route("/openapi.json", "GET", document.answer, always))
    app = Starlette(
        routes=routes,
        middleware=door.middleware(),
        lifespan=lambda _: background.running(),
        exception_handlers={HTTPException: _answer_no_route},
    )
    app.router.redirect_slashes = False
    return app


def _answer_no_route(request: Request, error: Exception) -> Response:
    """Answer what the router refuses in the shape of all other errors."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:80]
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _methods_of(request)
        headers = {"Allow": allowed}
        message, code = f"{path} does not take {method}; it takes {allowed}", "method_not_allowed"
    else:
        message, code = f"there is nothing at {path}", "not_found"
    body = ErrorBody(ErrorDetail(message, "invalid_request_error", code=code))
    return Response(
        msgspec.json.encode(body),
        status_code=error.status_code,
        headers=headers,
        media_type="application/json",
    )


def _methods_of(request: Request) -> str:
    """Return the methods that a path takes; the router names those of its first route alone."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods}))
