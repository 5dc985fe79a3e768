"""`GET /openapi.json`: what every path takes and answers, as an OpenAPI 3.1 document.

Its paths are the routes of the app, its schemas those of the types and tables that bodies are read with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any, Final, NamedTuple

import msgspec
from anyio import CapacityLimiter, Lock, to_thread
from starlette.routing import BaseRoute, Route

import vidette
from vidette.service.anthropic import ANTHROPIC
from vidette.service.errors import ErrorBody
from vidette.service.keys import OPEN, AdminOnly, Keys
from vidette.service.later import Later
from vidette.service.openapi_schema import Schema, Schemas
from vidette.service.openapi_table import EVENTS, OPERATIONS, QUERY, AnthropicError, Operation
from vidette.service.responses import Answer, Endpoint, Exchange

SECURITY: Final = ("bearer", "api_key")
"""The ways to give a key, by their names in the document."""


class Document:
    """The document of one app, made when it is first asked for.

    Args:
        routes: of the app; whatever is among them by then is in it.
        keys: of the service; with some, it says which paths need one.
    """

    def __init__(self, routes: Sequence[BaseRoute], keys: Keys) -> None:
        self._routes = routes
        self._keys = keys
        self._made: bytes | None = None
        self._making = Lock()

    async def answer(self, exchange: Exchange) -> None:
        """Answer `GET /openapi.json`."""
        async with self._making:
            if self._made is None:
                # It takes some 50 ms, in which streams go on.
                self._made = await to_thread.run_sync(self._make, limiter=CapacityLimiter(1))
        await exchange.send_bytes(self._made, b"application/json")

    def _make(self) -> bytes:
        return msgspec.json.encode(document_of(self._routes, self._keys))


class Served(NamedTuple):
    """A route of ours."""

    path: str
    parameters: Sequence[str]
    method: str
    endpoint: Endpoint
    admin: bool
    operation: Operation


def document_of(routes: Sequence[BaseRoute], keys: Keys) -> Schema:
    """Return the document.

    Args:
        routes: of an app; the page's and those that are not ours are left out.
        keys: of the service.
    """
    served = list(served_of(routes))
    told = [each.operation for each in served]
    types = [ErrorBody, AnthropicError]
    types += [type_ for each in told for type_ in (each.answer, *each.unavailable) if type_ is not None]
    schemas = Schemas(types, [each.body for each in told if each.body is not None])
    paths: dict[str, Schema] = {}
    for each in served:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas, keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Vidette", "version": vidette.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas.components(paths),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def served_of(routes: Sequence[BaseRoute]) -> Iterator[Served]:
    """Yield the routes that are ours; the HEAD that comes with a GET is not told of."""
    for route in routes:
        if not isinstance(route, Route):
            continue
        inside: Any = route.endpoint
        admin = isinstance(inside, AdminOnly)
        if isinstance(inside, AdminOnly):
            inside = inside.app
        if isinstance(inside, Endpoint):
            operation = OPERATIONS.get(_function_of(inside.answer), Operation())
            for method in sorted((route.methods or set()) - {"HEAD"}):
                names = list(route.param_convertors)
                yield Served(route.path_format, names, method, inside, admin, operation)


def _function_of(answer: Answer) -> Callable[..., Any]:
    return answer.__func__ if isinstance(answer, MethodType) else answer


def _operation(each: Served, schemas: Schemas, keys: Keys) -> Schema:
    """Return what a path does with a method."""
    operation, answer = each.operation, each.endpoint.answer
    summary = (inspect.getdoc(answer) or "").partition("\n")[0]
    told: Schema = {"operationId": _name_of(each), "summary": summary}
    owner = answer.__self__ if isinstance(answer, MethodType) else None
    if isinstance(owner, Later):
        told["description"] = f"Not served yet: {owner.what}."
    parameters = [_parameter(name, "path") for name in each.parameters]
    parameters += [_parameter(name, "query") for name in sorted(operation.query)]
    if parameters:
        told["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": schemas.of(operation.body)}}
        told["requestBody"] = {"content": content, "required": not operation.may_be_empty}
    needs_key = each.path not in OPEN and (bool(keys) if each.admin else bool(keys.api))
    told["responses"] = _responses(each, schemas, needs_key=needs_key)
    told["security"] = [{name: []} for name in SECURITY] if needs_key else []
    return told


def _responses(each: Served, schemas: Schemas, *, needs_key: bool) -> Schema:
    operation = each.operation
    error = AnthropicError if each.endpoint.dialect is ANTHROPIC else ErrorBody
    responses: Schema = {}
    if operation.answer is not None:
        content: Schema = {}
        if operation.content_type != EVENTS:
            content[operation.content_type] = {"schema": schemas.of(operation.answer)}
        if operation.content_type == EVENTS or _streams(operation):
            # Of no type: to some readers the whole body is an instance of it, to others each event.
            description = "With `stream`: events of JSON." if content else "Events of JSON."
            content[EVENTS] = {"schema": {"description": description}}
        responses["200"] = {"description": "The answer.", "content": content}
    if needs_key:
        responses["401"] = _json("There is no key, or a wrong one.", schemas.of(error))
    if each.admin and needs_key:
        responses["403"] = _json("It needs the admin key.", schemas.of(error))
    if operation.answer is None:
        responses["501"] = _json("It is not served yet.", schemas.of(error))
    if operation.unavailable:
        either = {"anyOf": [schemas.of(type_) for type_ in operation.unavailable]}
        responses["503"] = _json("It is not so, and why.", either)
    responses["4XX"] = _json("The request is refused; of 429, Retry-After says when.", schemas.of(error))
    responses["5XX"] = _json("The request failed.", schemas.of(error))
    return responses


def _streams(operation: Operation) -> bool:
    """Return whether there is an answer in events: whether its body has a `stream` that is honoured."""
    fields = None if operation.body is None else operation.body.fields
    return fields is not None and "stream" in {*fields.honoured.__struct_fields__} - {*fields.refused}


def _parameter(name: str, where: str) -> Schema:
    schema = QUERY.get(name) if where == "query" else None
    return {"name": name, "in": where, "required": where == "path", "schema": schema or {"type": "string"}}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _name_of(each: Served) -> str:
    """Return a name that no other operation has."""
    words = "".join(letter if letter.isalnum() else " " for letter in each.path).split()
    return "_".join([each.method.lower(), *words])
