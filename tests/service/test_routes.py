"""Paths are found wherever the app is: at the root of a server, below a prefix, or mounted in another app."""

from __future__ import annotations

import inspect

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from tests.service.driver import Call, call
from vidette.service.hosts import LocalHosts


@pytest.mark.parametrize("path", ["/health", "/v1/models/toy"])
async def test_at_the_root(app: Starlette, path: str) -> None:
    done = await call(app, path, method="GET")
    assert done.status == 200
    assert done.scope["route"].matches(done.scope)[0].name == "FULL"


@pytest.mark.parametrize("path", ["/health", "/v1/models/toy"])
async def test_below_a_prefix_that_the_server_names(app: Starlette, path: str) -> None:
    request = Call(app, "/llm" + path, method="GET")
    request.scope["root_path"] = "/llm"
    assert (await request.run()).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models/toy"])
async def test_mounted_in_another_app(app: Starlette, path: str) -> None:
    other = Starlette(routes=[Mount("/llm", app)])
    assert (await call(other, "/llm" + path, method="GET")).status == 200


@pytest.mark.parametrize("path", ["/health/", "/HEALTH", "//health", "/health%20", "/v1/models/"])
async def test_another_path_is_another_path(app: Starlette, path: str) -> None:
    done = await call(app, path, method="GET")
    assert (done.status, done.error["code"]) in {(404, "not_found"), (404, "model_not_found")}


async def test_another_method_is_refused_with_those_that_there_are(app: Starlette) -> None:
    done = await call(app, "/v1/chat/completions", method="GET")
    assert (done.status, done.headers["allow"]) == (405, "POST")
    assert (await call(app, "/health", method="HEAD")).status == 200


def test_any_server_can_tell_that_it_is_an_asgi_app(app: Starlette) -> None:
    """They look at its `__call__`, and take what is no coroutine function for ASGI 2, or WSGI."""
    assert inspect.iscoroutinefunction(app.__call__)
    assert inspect.iscoroutinefunction(LocalHosts(app).__call__)


async def test_a_route_that_is_added_later_is_found(app: Starlette) -> None:
    class Added:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await PlainTextResponse("added")(scope, receive, send)

    await call(app, "/health", method="GET")
    app.router.routes.append(Route("/added", Added(), methods=["GET"]))
    assert (await call(app, "/added", method="GET")).body == b"added"
