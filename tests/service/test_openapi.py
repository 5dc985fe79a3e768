"""The document at `/openapi.json` has every route, is whole, and says of bodies what is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

import vidette
from tests.service.driver import call
from vidette.service import FrontDoor, Keys, Secret, build_app, chat, native
from vidette.service.anthropic import ANTHROPIC, error_in_anthropics_words
from vidette.service.errors import NotYet
from vidette.service.fields import Fields
from vidette.service.keys import OPEN
from vidette.service.openapi import Document, document_of, served_of
from vidette.service.openapi_schema import REFS, Form, Many
from vidette.service.openapi_table import OPERATIONS, QUERY, AnthropicError
from vidette.service.response_shape import Response
from vidette.service.site import FILES

METHODS = {"get", "post", "delete"}


@pytest.fixture
def document(app: Starlette) -> dict[str, Any]:
    made = msgspec.json.decode(msgspec.json.encode(document_of(app.routes, Keys())))
    assert isinstance(made, dict)
    return made


def everything_in(value: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of a document."""
    if isinstance(value, dict):
        yield value
        for inside in value.values():
            yield from everything_in(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from everything_in(inside)


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        assert methods, path
        for method, operation in methods.items():
            yield path, method, operation


def schema(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document["components"]["schemas"][name]
    assert isinstance(found, dict)
    return found


async def test_it_is_served(app: Starlette) -> None:
    first = await call(app, "/openapi.json", method="GET")
    assert (first.status, first.headers["content-type"]) == (200, "application/json")
    assert first.json()["openapi"] == "3.1.0"
    assert first.json()["info"]["version"] == vidette.__version__
    assert (await call(app, "/openapi.json", method="GET")).body == first.body


async def test_it_is_made_once(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*args: Any) -> dict[str, Any]:
        made.append(args)
        return {}

    monkeypatch.setattr("vidette.service.openapi.document_of", make)
    for _ in range(2):
        assert (await call(app, "/openapi.json", method="GET")).json() == {}
    assert len(made) == 1


def test_it_has_every_route_but_the_page_and_no_other(app: Starlette, document: dict[str, Any]) -> None:
    routes = {
        (route.path_format, method.lower())
        for route in app.routes
        if isinstance(route, Route) and route.path_format not in FILES
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert len(routes) > 50
    assert all(isinstance(route, Route) for route in app.routes)
    assert {(path, method) for path, method, _ in operations_of(document)} == routes


def test_of_every_handler_it_is_known_what_it_takes(app: Starlette) -> None:
    answers: set[Any] = {each.endpoint.answer for each in served_of(app.routes)}
    functions = {answer.__func__ for answer in answers}
    assert functions == {*OPERATIONS, Document.answer}


def test_it_is_whole(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    told = {each["$ref"] for each in everything_in(document) if isinstance(each.get("$ref"), str)}
    assert {ref.removeprefix(REFS) for ref in told} == set(schemas)
    names = []
    for path, method, operation in operations_of(document):
        assert method in METHODS
        assert operation["summary"]
        assert operation["responses"]
        names.append(operation["operationId"])
        for response in operation["responses"].values():
            assert response["description"]
            assert all(content["schema"] for content in response["content"].values())
        parameters = operation.get("parameters", [])
        in_path = {each["name"] for each in parameters if each["in"] == "path"}
        assert {word[1:-1] for word in path.split("/") if word.startswith("{")} == in_path
        assert all(each["required"] for each in parameters if each["in"] == "path")
    assert len(names) == len(set(names))


def test_each_form_has_a_name_of_its_own() -> None:
    fields: dict[str, Fields[Any]] = {}

    def look(form: Form) -> None:
        name = form.name or form.fields.honoured.__name__
        assert fields.setdefault(name, form.fields) is form.fields, name
        assert set(form.inner) <= {*form.fields.honoured.__struct_fields__}
        for shapes in form.inner.values():
            for shape in shapes:
                if isinstance(shape, Form | Many):
                    look(shape.of if isinstance(shape, Many) else shape)

    for operation in OPERATIONS.values():
        if operation.body is not None:
            look(operation.body)
    assert len(fields) > 20


def test_a_body_has_what_is_honoured_and_what_is_refused_and_nothing_else(document: dict[str, Any]) -> None:
    for name, fields in (
        ("ChatRequest", chat.BODY),
        ("NativeRequest", native.fields_up_to(1)),
        ("SamplingParams", native.SAMPLING),
    ):
        told = schema(document, name)
        honoured = fields.honoured.__struct_fields__
        assert set(told["properties"]) == {*honoured, *fields.refused}
        assert told["additionalProperties"] is False
        for field, neutral in fields.refused.items():
            assert told["properties"][field]["enum"][0] is None
            assert len(told["properties"][field]["enum"]) == 1 + len(neutral)
    body = schema(document, "ChatRequest")
    assert body["required"] == ["messages"]
    assert body["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 1}
    assert "501" in body["properties"]["tools"]["description"]
    assert "400" in body["properties"]["store"]["description"]
    assert body["properties"]["messages"] == {"type": "array", "items": {"$ref": f"{REFS}ChatInput"}}


async def test_values_that_it_says_are_fine_are(app: Starlette, document: dict[str, Any]) -> None:
    """Every refused field of a chat is honoured with each value of its schema, and refused with another."""
    for name, told in schema(document, "ChatRequest")["properties"].items():
        if name not in chat.BODY.refused:
            continue
        body = b'{"messages": [], "%b": %%b}' % name.encode()
        for value in told["enum"]:
            chat.BODY.decode(body % msgspec.json.encode(value))
        answer = await call(app, "/v1/chat/completions", body % b'"no such value"')
        assert answer.status == (501 if "501" in told["description"] else 400), name


def test_of_a_query_it_says_what_is_fine(document: dict[str, Any]) -> None:
    told = {
        (path, each["name"]): each["schema"]
        for path, _, operation in operations_of(document)
        for each in operation.get("parameters", [])
        if each["in"] == "query"
    }
    assert told["/v1/responses/{id}", "stream"] == {"enum": ["false"]}
    assert told["/v1/loads", "format"] == {"enum": ["json"]}
    assert told["/v1/loads", "dp_rank"] == {"type": "integer", "minimum": 0}
    assert told["/flush_cache", "timeout"]["type"] == "number"
    assert told["/v1/activity", "interval"] == {"type": "number", "minimum": 0.1, "maximum": 60.0}
    assert told["/v1/activity", "limit"] == {"type": "integer", "minimum": 0, "maximum": 1000}
    assert {name for _, name in told} == {*QUERY}


def test_answers_in_events_are_told_of_where_they_can_be_asked_for(document: dict[str, Any]) -> None:
    streams = {}
    for path, _, operation in operations_of(document):
        content = operation["responses"].get("200", {}).get("content", {})
        if "text/event-stream" in content:
            streams[path] = content["text/event-stream"]["schema"]
    assert {*streams} == {
        "/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/activity",
    }
    for told in streams.values():
        assert "type" not in told


def test_what_is_not_served_yet_has_no_answer(document: dict[str, Any]) -> None:
    operation = document["paths"]["/v1/embeddings"]["post"]
    assert set(operation["responses"]) == {"501", "4XX", "5XX"}
    assert operation["description"] == "Not served yet: embeddings, scores and ranks."


async def test_answers_have_the_fields_it_says(app: Starlette, document: dict[str, Any]) -> None:
    for path, name in (
        ("/health/live", "HealthBody"),
        ("/server_info", "ServerInfo"),
        ("/v1/models", "ModelList"),
    ):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        assert content["schema"] == {"$ref": REFS + name}
        answer = (await call(app, path, method="GET")).json()
        assert set(answer) == set(schema(document, name)["properties"])
    answer = (await call(app, "/v1/responses", {"input": "Hello", "max_output_tokens": 1})).json()
    assert set(answer) == set(schema(document, "Response")["properties"])
    assert msgspec.convert(answer, Response).status == "incomplete"


def test_errors_of_anthropics_api_are_what_is_told_of_them(document: dict[str, Any]) -> None:
    made = error_in_anthropics_words(NotYet("no"))
    assert msgspec.convert(made, AnthropicError).error.message == "no"
    assert set(made["error"]) == set(schema(document, "AnthropicDetail")["properties"])
    told = document["paths"]["/v1/messages"]["post"]["responses"]["4XX"]["content"]["application/json"]
    assert told["schema"] == {"$ref": f"{REFS}AnthropicError"}
    assert ANTHROPIC.error is error_in_anthropics_words


@pytest.mark.parametrize(("api", "admin"), [(None, None), ("k", None), (None, "a"), ("k", "a")])
async def test_it_says_which_paths_need_a_key(
    engine: vidette.Engine, api: str | None, admin: str | None
) -> None:
    keys = Keys(() if api is None else (Secret(api),), None if admin is None else Secret(admin))
    app = build_app(engine, door=FrontDoor(keys=keys))
    assert (await call(app, "/openapi.json", method="GET")).status == (200 if api is None else 401)
    headers = [(b"authorization", b"Bearer k")]
    document = (await call(app, "/openapi.json", method="GET", headers=headers)).json()
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    of_admin = {each.path for each in served_of(app.routes) if each.admin}
    assert "/flush_cache" in of_admin
    for path, _, operation in operations_of(document):
        needs = path not in OPEN and (bool(keys) if path in of_admin else api is not None)
        assert operation["security"] == ([{"bearer": []}, {"api_key": []}] if needs else []), path
        assert ("401" in operation["responses"]) == needs
        assert ("403" in operation["responses"]) == (needs and path in of_admin)
