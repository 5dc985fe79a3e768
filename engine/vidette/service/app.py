"""`build_app()`: the routes of the service, as a Starlette app."""

from __future__ import annotations

from collections.abc import Awaitable
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vidette.api import Engine
from vidette.service.activity import ActivityFeed
from vidette.service.anthropic import ANTHROPIC, Anthropic
from vidette.service.background import Background
from vidette.service.bodies import BodyReader
from vidette.service.control import Control
from vidette.service.door import FrontDoor
from vidette.service.errors import NothingThere, WrongMethod
from vidette.service.gate import Gate
from vidette.service.health import HealthChecks
from vidette.service.info import Info
from vidette.service.keys import AdminOnly
from vidette.service.later import LATER, Later
from vidette.service.limits import ServiceLimits
from vidette.service.native import Native
from vidette.service.openai import OpenAI
from vidette.service.openapi import Document
from vidette.service.refusals import refusal
from vidette.service.response_api import Responses
from vidette.service.responses import NAMED_EVENTS, OPENAI, Answer, Dialect, Endpoint
from vidette.service.shares import Shares
from vidette.service.site import site_routes
from vidette.service.tokens import Tokens

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def build_app(
    engine: Engine,
    *,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  immutable
    gate: Gate | None = None,
    door: FrontDoor | None = None,
    tracer: Tracer | None = None,
) -> Starlette:
    """Return an ASGI app that serves an engine, on any server, on asyncio and on trio.

    Args:
        engine: an open engine, which outlives the app.
        limits: bounds of the service.
        gate: what the server closes when it stops; None makes one that stays open.
        door: who may use it, and what is logged of that; None: everybody, and nothing.
        tracer: makes a span for each request, as a rule that of the engine; None: nothing does.
    """
    inside = gate if gate is not None else Gate()
    openai = OpenAI(engine, limits)
    tokens = Tokens(engine, limits, openai)
    background = Background()
    stored = Responses(engine, limits, openai, background)
    anthropic = Anthropic(engine, limits, openai)
    native = Native(engine)
    door = FrontDoor() if door is None else door
    shares = Shares(
        [key.name for key in door.keys.api],
        limits,
        max_requests=engine.config.max_requests,
        clock=anyio.current_time,
    )
    bodies = BodyReader(limits, shares)
    info = Info(engine, limits, door.keys, shares)
    control = Control(engine, limits, door.logs)
    health = HealthChecks(engine, limits)
    always = Gate()  # how the engine is can be asked while the server stops, too

    def route(path: str, method: str, answer: Answer, gate: Gate = inside) -> Route:
        endpoint = Endpoint(answer, gate=gate, bodies=bodies, limits=limits, stopping=inside)
        return Route(path, endpoint, methods=[method])

    def counted(path: str, answer: Answer, dialect: Dialect = OPENAI) -> Route:
        endpoint = Endpoint(answer, gate=inside, bodies=bodies, limits=limits, dialect=dialect, shares=shares)
        return Route(path, endpoint, methods=["POST"])

    def admin(path: str, answer: Answer, method: str = "POST") -> Route:
        endpoint = Endpoint(answer, gate=inside, bodies=bodies, limits=limits)
        return Route(path, AdminOnly(endpoint), methods=[method])

    routes: list[BaseRoute] = [
        route("/health", "GET", health.answer),
        route("/health/live", "GET", health.live, always),
        route("/health/progress", "GET", health.progress, always),
        route("/health/ready", "GET", health.ready),
        route("/health_generate", "GET", health.ready),
        counted("/generate", native.generate),
        counted("/v1/chat/completions", openai.chat_completions),
        counted("/v1/completions", openai.completions),
        counted("/v1/responses", stored.create, NAMED_EVENTS),
        route("/v1/responses/{id}", "GET", stored.retrieve),
        route("/v1/responses/{id}", "DELETE", stored.delete),
        route("/v1/responses/{id}/cancel", "POST", stored.cancel),
        counted("/v1/messages", anthropic.messages, ANTHROPIC),
        counted("/v1/messages/count_tokens", anthropic.count_tokens, ANTHROPIC),
        counted("/tokenize", tokens.tokenize),
        counted("/detokenize", tokens.detokenize),
        counted("/v1/tokenize", tokens.tokenize),
        counted("/v1/detokenize", tokens.detokenize),
        route("/v1/models", "GET", openai.list_models),
        route("/v1/models/{id:path}", "GET", openai.show_model),
        *(route(path, "GET", answer, always) for path, answer in info.routes().items()),
        admin("/v1/activity", ActivityFeed(engine, limits, inside).answer, "GET"),
        *(route(path, "POST", answer) for path, answer in control.client_routes().items()),
        *(admin(path, answer) for path, answer in control.admin_routes().items()),
        *(admin(path, Later(what).answer) for what, paths in LATER.items() for path in paths),
    ]
    routes += site_routes()
    document = Document(routes, door.keys)
    routes.append(route("/openapi.json", "GET", document.answer, always))
    app = _Service(routes=routes, middleware=door.middleware(tracer), lifespan=lambda _: background.running())
    app.router.redirect_slashes = False
    return app


class _Service(Starlette):
    """A Starlette in which nothing but the middleware it was given stands between endpoints and the server.

    Endpoints answer whatever goes wrong, and raise nothing. Starlette has two layers for what is raised, and
    each event of a stream would go through them, and through the router: paths without parameters, which are
    nearly all that is asked for, are found in a table instead.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Put the middleware around the router."""
        self._plain: dict[tuple[str, str], Route] = {}
        for route in self.routes:
            if isinstance(route, Route) and not route.param_convertors:
                for method in route.methods or ():
                    self._plain.setdefault((method, route.path), route)
        app: ASGIApp = self._route
        for layer, args, options in reversed(self.user_middleware):
            app = layer(app, *args, **options)
        return app

    def _route(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and not scope.get("root_path"):
            route = self._plain.get((scope["method"], scope["path"]))
            if route is not None:
                scope.update(router=self.router, route=route, endpoint=route.endpoint, path_params={})
                return route.app(scope, receive, send)
        return self._search(scope, receive, send)

    async def _search(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.router(scope, receive, send)
        except HTTPException as error:
            await _answer_no_route(Request(scope), error)(scope, receive, send)


def _answer_no_route(request: Request, error: HTTPException) -> Response:
    """Answer what the router refuses in the shape of all other errors."""
    path = request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _methods_of(request)
        message = f"{path[:80]} does not take {request.method}; it takes {allowed}"
        return refusal(WrongMethod(message, code="method_not_allowed"), path, {"Allow": allowed})
    return refusal(NothingThere(f"there is nothing at {path[:80]}", code="not_found"), path)


def _methods_of(request: Request) -> str:
    """Return the methods that a path takes; the router names those of its first route alone."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods}))
