"""Who may come in: keys, pages of other origins, ids of requests, and what the log says of them."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

import vidette
from tests.service.driver import Call, Silence, call
from vidette import UsageError
from vidette.service import FrontDoor, Keys, LogSettings, Secret, build_app, check_origins
from vidette.service.access_log import MOST_BODY_BYTES, SHOWN_BODY_BYTES
from vidette.service.keys import OPEN, given_key, read_keys

API, ROOT = "sk-client", "sk-root"
SHORT = {"text": "a prompt nobody else reads", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
ADMIN = [
    "/abort_request",
    "/flush_cache",
    "/freeze_gc",
    "/pause_generation",
    "/continue_generation",
    "/start_profile",
    "/stop_profile",
    "/configure_logging",
    "/hicache/storage-backend/clear",
    "/update_weights_from_disk",
]


def with_keys(engine: vidette.Engine, api: str | None = API, admin: str | None = None) -> Starlette:
    keys = Keys(() if api is None else (Secret(api),), None if admin is None else Secret(admin))
    return build_app(engine, door=FrontDoor(keys=keys))


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


def paths_of(app: Starlette) -> list[tuple[str, str]]:
    """Return every path of an app with a method that it takes."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    return [
        (route.path.replace("{id:path}", "x").replace("{id}", "x"), next(iter(sorted(route.methods or ()))))
        for route in routes
    ]


# --- keys --------------------------------------------------------------------------------------------


async def test_without_its_key_nothing_is_answered_but_health(engine: vidette.Engine) -> None:
    app = with_keys(engine)
    everything = [
        *paths_of(app),
        ("/", "GET"),
        ("/no/such", "GET"),
        ("/health/", "GET"),
        ("/healthx", "GET"),
        ("//health", "GET"),
    ]
    assert len(everything) > 40
    for path, method in everything:
        answer = await call(app, path, b"" if method == "GET" else b"{", method=method)
        if path in OPEN:
            assert answer.status == 200, path
        else:
            assert answer.status == 401, path
            if path.startswith("/v1/messages"):
                assert answer.json()["error"]["type"] == "authentication_error"
            else:
                assert answer.error["code"] == "invalid_api_key", path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert API not in answer.body.decode()


async def test_the_body_of_who_has_no_key_is_not_read(engine: vidette.Engine) -> None:
    request = Call(with_keys(engine), "/generate", pieces=[b"{", Silence()])
    await request.run()
    assert (request.status, request.asked) == (401, 0)


@pytest.mark.parametrize(
    "headers",
    [
        bearer(API),
        [(b"x-api-key", API.encode())],
        [(b"authorization", b"bearer   sk-client ")],
        [*bearer(API), (b"x-api-key", API.encode())],
    ],
)
async def test_the_key_may_be_given_in_several_ways(engine: vidette.Engine, headers: Any) -> None:
    assert (await call(with_keys(engine), "/generate", SHORT, headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        bearer(""),
        bearer("sk-clien"),
        bearer("sk-client2"),
        bearer("SK-CLIENT"),
        [(b"authorization", b"Basic sk-client")],
        [(b"authorization", b"sk-client")],
        [(b"x-api-key", b"\xff\x00")],
        [*bearer(API), *bearer("other")],
        [*bearer(API), (b"x-api-key", b"other")],
        [(b"authorization", b"Bearer " + b"x" * 60_000)],
        bearer("***"),
    ],
)
async def test_what_is_not_the_key_is_refused(engine: vidette.Engine, headers: Any) -> None:
    answer = await call(with_keys(engine), "/generate", SHORT, headers=headers)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ADMIN)
@pytest.mark.parametrize(("api", "admin"), list(itertools.product([API, None], [ROOT, None])))
async def test_what_is_the_operators_needs_the_highest_key_there_is(
    engine: vidette.Engine, path: str, api: str | None, admin: str | None
) -> None:
    app = with_keys(engine, api, admin)
    wrong = b'{"colour": "red"}'  # so that whoever comes in does nothing
    inside = 501 if "weights" in path else 400
    statuses = {
        key: (await call(app, path, wrong, headers=bearer(key) if key else [])).status
        for key in ("", API, ROOT)
    }
    match api, admin:
        case None, None:
            assert set(statuses.values()) == {inside}
        case _, None:
            assert statuses == {"": 401, API: inside, ROOT: 401}
        case None, _:
            assert statuses == {"": 403, API: 403, ROOT: inside}
        case _:
            assert statuses == {"": 401, API: 403, ROOT: inside}


@pytest.mark.parametrize("path", ADMIN)
async def test_of_several_clients_none_does_what_is_the_operators(engine: vidette.Engine, path: str) -> None:
    for admin in (None, Secret(ROOT)):
        app = build_app(engine, door=FrontDoor(keys=Keys((Secret("a"), Secret("b", "b")), admin)))
        for key in ("a", "b"):
            answer = await call(app, path, b'{"colour": "red"}', headers=bearer(key))
            assert (answer.status, answer.error["code"]) == (403, "admin_key_required")


async def test_the_admin_key_opens_the_rest_as_well(engine: vidette.Engine) -> None:
    app = with_keys(engine, API, ROOT)
    for key in (API, ROOT):
        assert (await call(app, "/generate", SHORT, headers=bearer(key))).status == 200
    assert (await call(with_keys(engine, None, ROOT), "/generate", SHORT)).status == 200


KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@given(KEYS, KEYS)
def test_a_key_matches_itself_alone_and_cannot_be_read_back(key: str, other: str) -> None:
    """A secret matches its own text and no other, and no way of writing it shows it."""
    secret = Secret(key)
    assert secret.matches(key.encode())
    assert secret.matches(other.encode()) == (key == other)
    assert (repr(secret), str(secret), f"{secret}") == ("***", "***", "***")
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("key", ["", " ", "two words", "ключ", "x\n", "x" * 1025, "\x7f"])
def test_what_cannot_be_in_a_header_is_no_key(key: str) -> None:
    with pytest.raises(UsageError) as raised:
        Secret(key)
    assert not key.strip() or key not in str(raised.value)


@pytest.mark.parametrize(
    "lines",
    [
        ["pass!5ecret more"],  # the wrong way round, each of them
        ["sk-5ecret alice"],
        ["5ecret0123456789abcdef alice"],
        ["alice sk-1 5ecret"],
        ["5ecret a", "5ecret b"],
        ["a 5ecret", "b 5ecret"],
        ["a/5ecret b"],
        ["a 5ecr\xe9t5ecret"],
    ],
)
def test_no_part_of_a_line_is_shown(lines: list[str]) -> None:
    """A line is told by its number, since what stands in the place of a name may be a key."""
    with pytest.raises(UsageError, match=rf"keys? .*{len(lines) + 1}\b") as raised:
        read_keys(["fine 1", *lines])
    assert "5ecret" not in str(raised.value)


def test_a_key_by_itself_is_not_taken_for_keys() -> None:
    wrong: Any
    for wrong in (Secret("5ecret"), "5ecret", [Secret("5ecret")], ("5ecret",)):
        with pytest.raises(UsageError, match="it must be a tuple of keys") as raised:
            Keys(wrong)
        assert "5ecret" not in str(raised.value)


@given(
    st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"host"]), st.binary(max_size=20)))
)
def test_any_headers_are_read(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever headers say, the key they give is bytes or none."""
    key = given_key({"headers": headers})
    assert key is None or isinstance(key, bytes)


# --- origins -----------------------------------------------------------------------------------------

PAGE = (b"origin", b"https://chat.example")
PREFLIGHT = [
    PAGE,
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"content-type"),
]


async def test_pages_of_other_origins_are_not_let_in_by_themselves(app: Starlette) -> None:
    answer = await call(app, "/generate", method="OPTIONS", headers=PREFLIGHT)
    assert answer.status == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_those_that_are_named_are_let_in(engine: vidette.Engine) -> None:
    door = FrontDoor(keys=Keys((Secret(API),)), cors_origins=("https://chat.example",))
    app = build_app(engine, door=door)
    asked = await call(app, "/generate", method="OPTIONS", headers=PREFLIGHT)  # browsers send no key with it
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, "https://chat.example")
    headers = [PAGE, *bearer(API), (b"content-type", b"application/json")]
    answer = await call(app, "/generate", SHORT, headers=headers)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://chat.example")
    assert "access-control-allow-credentials" not in answer.headers
    other = await call(
        app, "/generate", method="OPTIONS", headers=[(b"origin", b"https://evil.example"), *PREFLIGHT[1:]]
    )
    assert (other.status, "access-control-allow-origin" in other.headers) == (400, False)


PAGE_HEADERS = (
    "authorization,content-type,x-api-key,x-request-id,anthropic-version,anthropic-beta,"
    "anthropic-dangerous-direct-browser-access,x-stainless-arch,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-timeout"
)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_pages_may_send_what_clients_in_javascript_send(engine: vidette.Engine, method: str) -> None:
    door = FrontDoor(keys=Keys((Secret(API),)), cors_origins=("https://chat.example",))
    asks = [
        PAGE,
        (b"access-control-request-method", method.encode()),
        (b"access-control-request-headers", PAGE_HEADERS.encode()),
    ]
    answer = await call(build_app(engine, door=door), "/v1/messages", method="OPTIONS", headers=asks)
    assert answer.status == 200
    allowed = answer.headers["access-control-allow-headers"].split(",")
    assert {name.strip() for name in allowed} >= set(PAGE_HEADERS.split(","))
    assert method in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("named", ["https://chat.example", "*"])
async def test_pages_use_all_methods(engine: vidette.Engine, named: str) -> None:
    app = build_app(engine, door=FrontDoor(cors_origins=(named,)))
    asked = {"model": "toy", "input": "hi", "max_output_tokens": 2}
    headers = [PAGE, (b"content-type", b"application/json")]
    made = await call(app, "/v1/responses", asked, headers=headers)
    assert made.status == 200, made.body
    path = f"/v1/responses/{made.json()['id']}"
    assert (await call(app, path, method="GET", headers=[PAGE])).status == 200
    cancelled = await call(app, path + "/cancel", headers=[PAGE])
    assert "was not made in the background" in cancelled.error["message"]
    deleted = await call(app, path, method="DELETE", headers=[PAGE])
    assert (deleted.status, "access-control-allow-origin" in deleted.headers) == (200, True)


async def test_what_a_page_can_send_without_asking_is_refused_if_it_is_not_named(
    engine: vidette.Engine,
) -> None:
    app = build_app(engine, door=FrontDoor(cors_origins=("https://chat.example",)))
    text = (b"content-type", b"text/plain")
    for origin in (b"https://evil.example", b"null", b"https://chat.example.evil.example", b""):
        for headers in ([(b"origin", origin), text], [(b"origin", origin)]):
            assert (await call(app, "/generate", SHORT, headers=headers)).status == 415
            assert (await call(app, "/v1/responses/resp_x/cancel", headers=headers)).status == 415
    assert (await call(app, "/generate", SHORT, headers=[PAGE, text])).status == 200


@pytest.mark.parametrize("origin", ["https://a.example", "http://localhost:3000", "*"])
def test_origins_are_as_browsers_write_them(origin: str) -> None:
    assert check_origins([origin]) == (origin,)


@pytest.mark.parametrize(
    "origin", ["", "a.example", "https://a.example/", "https://", "ftp://a", "null", "https://u@a"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="cors-origin"):
        check_origins([origin])


# --- ids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health/live", "/no/such", "/generate"])
async def test_every_answer_has_an_id(app: Starlette, path: str) -> None:
    ids = {(await call(app, path, method="GET")).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    answer = await call(app, path, method="GET", headers=[(b"x-request-id", b"trace/7:a_b.c=-+")])
    assert answer.headers["x-request-id"] == "trace/7:a_b.c=-+"


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"\xff", b"a\tb", b'"', b"a,b"])
async def test_an_id_that_is_not_fit_is_replaced(app: Starlette, given: bytes) -> None:
    answer = await call(app, "/health/live", method="GET", headers=[(b"x-request-id", given)])
    assert answer.status == 200
    assert len(answer.headers["x-request-id"]) == 32


async def test_the_id_is_in_refusals_too(engine: vidette.Engine) -> None:
    answer = await call(with_keys(engine), "/generate", headers=[(b"x-request-id", b"mine")])
    assert (answer.status, answer.headers["x-request-id"]) == (401, "mine")


# --- the log -----------------------------------------------------------------------------------------


async def logged(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, settings: LogSettings, **options: Any
) -> str:
    app = build_app(engine, door=FrontDoor(logs=settings))
    caplog.clear()
    with caplog.at_level(logging.INFO, "vidette.access"):
        await call(app, "/generate", SHORT, **options)
    (record,) = [record for record in caplog.records if record.name == "vidette.access"]
    return record.getMessage()


HEADERS = [(b"x-request-id", b"mine"), (b"user-agent", b"curl/8"), (b"authorization", b"Bearer sk-secret")]


async def test_by_itself_nothing_is_logged(app: Starlette, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await call(app, "/generate", SHORT)
    assert "prompt nobody" not in caplog.text
    assert not [record for record in caplog.records if record.name == "vidette.access"]


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_prompt_is_in_the_log(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, level: Any, form: Any
) -> None:
    line = await logged(engine, caplog, LogSettings(requests=True, level=level, format=form), headers=HEADERS)
    assert "prompt" not in line
    assert "sk-secret" not in line
    assert ("curl/8" in line) == ("127.0.0.1" in line) == (level == 1)
    if form == "json":
        said = msgspec.json.decode(line)
        assert (said["request_id"], said["path"], said["status"], said["whole"]) == (
            "mine",
            "/generate",
            200,
            True,
        )
        assert said["received"] == len(msgspec.json.encode(SHORT))
        assert said["sent"] > 100
    else:
        assert 'request_id="mine" method="POST" path="/generate" status=200' in line


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("after", ["", "/cancel", "/" + "y" * 300])
async def test_no_id_of_a_response_is_in_the_log(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, form: Any, after: str
) -> None:
    app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, level=1, format=form)))
    with caplog.at_level(logging.INFO, "vidette.access"):
        for before in ("/v1/responses/", "//v1/responses//", "/" + "x" * 240 + "/"):
            await call(app, f"{before}resp_5ecret{after}", method="GET")
    assert "5ecret" not in caplog.text
    assert f"/v1/responses/resp_***{after}"[:50] in caplog.text


@pytest.mark.parametrize("level", [2, 3])
async def test_prompts_are_if_that_is_asked_for(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, level: Any
) -> None:
    assert "a prompt nobody else reads" in await logged(
        engine, caplog, LogSettings(requests=True, level=level)
    )


@pytest.mark.parametrize(("level", "most"), [(2, SHOWN_BODY_BYTES), (3, MOST_BODY_BYTES)])
async def test_of_a_long_body_the_beginning_is_in_the_log(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, level: Any, most: int
) -> None:
    """The loop waits while a line is made, and what has to be escaped takes longest."""
    app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, level=level, format="json")))
    with caplog.at_level(logging.INFO, "vidette.access"):
        await call(app, "/generate", b"\x7f" * (most + 100))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vidette.access"]
    said = msgspec.json.decode(line)
    assert (said["received"], said["body"]) == (most + 100, "\x7f" * most)


async def test_what_a_client_chose_ends_no_line(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, level=1)))
    with caplog.at_level(logging.INFO, "vidette.access"):
        await call(app, '/x\n"FORGED\x1b[2J' + "y" * 1000, method="GET", headers=[(b"user-agent", b"a\r\nb")])
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vidette.access"]
    assert not {"\n", "\r", "\x1b"} & set(line)
    assert len(line) < 1000


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_line_has_what_a_terminal_obeys(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture, form: Any
) -> None:
    app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, level=2, format=form)))
    bad = "\x7f\x85\x9b2J\u2028\u202e\U000e0001\x1b"
    with caplog.at_level(logging.INFO, "vidette.access"):
        agent = (b"user-agent", b"a\x85b\x9b2J")
        await call(app, f"/x{bad}é", headers=[agent])
        await call(app, "/generate", bad.encode(), headers=[agent])
    lines = [record.getMessage() for record in caplog.records if record.name == "vidette.access"]
    for line in lines:
        assert line.isprintable()
        assert "\\u009b2J" in line
    assert "é" in lines[0]
    if form == "json":
        path, body = (msgspec.json.decode(line) for line in lines)
        assert (path["path"], path["agent"], body["body"]) == (f"/x{bad}é", "a\x85b\x9b2J", bad)


async def test_one_that_leaves_is_logged_as_such(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, format="json")))
    endless = {"text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}
    request = Call(app, "/generate", endless)
    with caplog.at_level(logging.INFO, "vidette.access"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            await request.wait_sent(2)
            request.leave()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vidette.access"]
    assert msgspec.json.decode(line)["whole"] is False
    await engine.wait_quiet()
