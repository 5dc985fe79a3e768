"""Bodies: bounds hold while they are read."""

from __future__ import annotations

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, Silence, call
from vidette.service import ServiceLimits, build_app

GENERATE = "/generate"
FINE = b'{"text": "x", "sampling_params": {"max_new_tokens": 2}}'


@pytest.fixture
def app(engine: vidette.Engine) -> Starlette:
    return build_app(engine, limits=ServiceLimits(body_bytes=1000, body_seconds=0.05))


async def test_a_body_in_pieces(app: Starlette) -> None:
    pieces = [FINE[at : at + 1] for at in range(len(FINE))] + [b""]
    assert (await call(app, GENERATE, pieces=pieces)).status == 200


async def test_a_body_up_to_the_bound(app: Starlette) -> None:
    assert (await call(app, GENERATE, FINE.ljust(1000))).status == 200


@pytest.mark.parametrize("length", [b"1001", b"9" * 5000])
async def test_a_body_that_says_it_is_too_large_is_not_read(app: Starlette, length: bytes) -> None:
    done = await call(app, GENERATE, FINE, headers=[(b"content-length", length)])
    assert done.status == 413
    assert done.asked == 0
    assert done.error["message"] == "the body is too large: at most 1000 bytes are accepted"


async def test_a_body_that_becomes_too_large_is_read_no_further(app: Starlette) -> None:
    done = await call(app, GENERATE, pieces=[b" " * 300] * 100)
    assert done.status == 413
    assert done.asked == 4


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_the_body_of_a_get_is_not_read(app: Starlette, path: str) -> None:
    """It takes no room of others, which matters where no key is needed, and none is waited for."""
    done = await call(app, path, method="GET", pieces=[*[b" " * 300] * 10, Silence()])
    assert done.status == 200


async def test_a_body_that_does_not_come_is_not_waited_for(app: Starlette) -> None:
    done = await call(app, GENERATE, pieces=[FINE[:10], Silence()])
    assert done.status == 408
    assert done.error["message"] == "the body did not arrive within 0.05 s"
    assert done.headers["connection"] == "close"


async def test_a_client_that_leaves_within_its_body_is_not_answered(app: Starlette) -> None:
    done = await call(app, GENERATE, pieces=[FINE[:10], None])
    assert done.sent == []


@pytest.mark.parametrize("content_type", [b"application/x-www-form-urlencoded", b"text/plain", b""])
async def test_the_content_type_does_not_matter(app: Starlette, content_type: bytes) -> None:
    assert (await call(app, GENERATE, FINE, headers=[(b"content-type", content_type)])).status == 200


async def test_a_web_page_must_say_that_it_sends_json(app: Starlette) -> None:
    origin = (b"origin", b"https://example.org")
    done = await call(app, GENERATE, FINE, headers=[origin, (b"content-type", b"text/plain")])
    assert done.status == 415
    assert done.error["type"] == "invalid_request_error"
    json = (b"content-type", b"application/json; charset=utf-8")
    assert (await call(app, GENERATE, FINE, headers=[origin, json])).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_web_page_may_ask_without_a_body(app: Starlette, method: str) -> None:
    done = await call(app, "/v1/models", method=method, headers=[(b"origin", b"https://example.org")])
    assert done.status == 200


async def test_bodies_have_a_bound_together(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(body_bytes=1000, all_bodies_bytes=1500))
    slow = Call(app, GENERATE, pieces=[b" " * 900, Silence()])
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.run)
            await anyio.wait_all_tasks_blocked()
            assert (await call(app, GENERATE, FINE.ljust(600))).status == 200
            refused = await call(app, GENERATE, FINE.ljust(601))
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            slow.leave()
    assert (await call(app, GENERATE, FINE.ljust(1000))).status == 200
