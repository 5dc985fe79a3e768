"""`build_app()`: the routes of the service, as a Starlette app."""

from __future__ import annotations

from http import HTTPStatus

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vidette.api import Engine
from vidette.errors import EngineBroken
from vidette.service.bodies import BodyReader
from vidette.service.errors import ErrorBody, ErrorDetail
from vidette.service.gate import Gate
from vidette.service.limits import ServiceLimits
from vidette.service.native import Native
from vidette.service.openai import OpenAI
from vidette.service.responses import Answer, Endpoint, Exchange


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
    health = Health(engine, limits)

    def route(path: str, method: str, answer: Answer) -> Route:
        endpoint = Endpoint(answer, gate=inside, bodies=bodies, limits=limits)
        return Route(path, endpoint, methods=[method])

    app = Starlette(
        routes=[
            route("/health", "GET", health.answer),
            route("/generate", "POST", native.generate),
            route("/v1/chat/completions", "POST", openai.chat_completions),
            route("/v1/models", "GET", openai.list_models),
            route("/v1/models/{id:path}", "GET", openai.show_model),
        ],
        exception_handlers={HTTPException: _answer_no_route},
    )
    app.router.redirect_slashes = False
    return app


class Health:
    """`GET /health`: a heartbeat round the ring, through the step loop itself.

    Args:
        engine: whose health is asked for.
        limits: bounds of the service.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits) -> None:
        self._engine = engine
        self._seconds = limits.health_seconds

    async def answer(self, exchange: Exchange) -> None:
        """Answer 200 if every part of the engine turns, 503 with the reason if not."""
        with anyio.move_on_after(self._seconds):
            await self._engine.heartbeat()
            await exchange.send_json({"status": "ok"})
            return
        raise EngineBroken(f"the engine did not answer a heartbeat within {self._seconds:g} s")


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
