"""Whatever refuses a request, before an endpoint sees it or in one, says so in the words of its API."""

from __future__ import annotations

from typing import Any

import pytest

import vidette
from tests.service.driver import Call, call
from vidette.service import FrontDoor, Gate, Keys, LocalHosts, Secret, ServiceLimits, build_app

KEY = [(b"x-api-key", b"sk-1")]
KEYS = FrontDoor(keys=Keys((Secret("sk-1"),), Secret("sk-2")))
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODY = {"model": "toy", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
TIGHT = ServiceLimits(key_requests_per_minute=1, body_bytes=200)


def words_of(answer: Call) -> tuple[str, str | None]:
    """Return whose words an error is in, and its type; checks that it has no other field."""
    told = answer.json()
    if "type" in told:
        assert set(told) == {"type", "error"}
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
        return "anthropic", told["error"]["type"]
    return "openai", answer.error["type"]


@pytest.mark.parametrize(
    "path", [MESSAGES, COUNT, "/v1/messages/batches", "/v1/messagesx", "/v1/chat/completions"]
)
async def test_each_api_has_its_own_words(engine: vidette.Engine, path: str) -> None:
    app: Any = build_app(engine, door=KEYS, limits=TIGHT)
    whose = "openai" if path in ("/v1/messagesx", "/v1/chat/completions") else "anthropic"
    served = path in (MESSAGES, COUNT, "/v1/chat/completions")
    refused = await call(app, path, BODY)
    assert (refused.status, words_of(refused)) == (401, (whose, "authentication_error"))
    elsewhere = await call(LocalHosts(app), path, BODY, headers=[(b"host", b"evil.example")])
    assert (elsewhere.status, words_of(elsewhere)) == (421, (whose, "invalid_request_error"))
    if not served:
        missing = await call(app, path, BODY, headers=KEY)
        kind = "not_found_error" if whose == "anthropic" else "invalid_request_error"
        assert (missing.status, words_of(missing)) == (404, (whose, kind))
        return
    wrong = await call(app, path, method="GET", headers=KEY)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert words_of(wrong) == (whose, "invalid_request_error")
    large = await call(app, path, b" " * 201, headers=KEY)
    kind = "request_too_large" if whose == "anthropic" else "invalid_request_error"
    assert (large.status, words_of(large)) == (413, (whose, kind))
    often = await call(app, path, BODY, headers=KEY)
    assert (often.status, often.headers["retry-after"]) == (429, "60")
    assert words_of(often) == (whose, "rate_limit_error")


async def test_a_server_that_stops_says_so_in_the_words_of_the_api(engine: vidette.Engine) -> None:
    gate = Gate()
    app = build_app(engine, gate=gate)
    gate.close()
    answer = await call(app, MESSAGES, BODY)
    assert (answer.status, words_of(answer)) == (529, ("anthropic", "overloaded_error"))
    assert answer.headers["retry-after"] == "1"
