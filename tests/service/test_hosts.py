"""A server on loopback answers to the names of loopback: no web page can make its own name one of them."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from vidette.service.hosts import LocalHosts, is_loopback
from vidette.service.keys import KeyCheck, Keys


def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


APP = LocalHosts(Starlette(routes=[Route("/", hello)]))


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "127.8.8.8", "[::1]", "[::1]:8000", ""],
)
def test_names_of_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "10.0.0.1",
        "[2001:db8::1]:80",
        "[::1",
    ],
)
async def test_other_names_are_refused_with_a_sentence(host: str) -> None:
    assert not is_loopback(host)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=APP), base_url="http://localhost"
    ) as client:
        refused = await client.get("/", headers={"host": host})
        assert refused.status_code == 421
        assert host in refused.json()["error"]["message"]
        assert (await client.get("/")).text == "hello"


async def test_what_is_no_http_is_closed_whatever_host_it_names() -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("it was passed on")

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    for check in (LocalHosts(app), KeyCheck(app, Keys())):
        sent.clear()
        await check({"type": "websocket", "path": "/", "headers": [(b"host", b"localhost")]}, receive, send)
        assert [message["type"] for message in sent] == ["websocket.close"]
