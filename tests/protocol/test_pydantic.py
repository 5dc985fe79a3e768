"""Our structs as bodies of a FastAPI app, asked over HTTP as a client would."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pydantic
import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from msgspec import Struct

from vidette_protocol.bodies import Base64Bytes
from vidette_protocol.messages import (
    FlushCacheReqInput,
    GenerateReqInput,
    SamplingParams,
    UpdateWeightsFromTensorReqInput,
)
from vidette_protocol.pydantic import StructBody


class Upload(Struct, kw_only=True):
    """A body of the app's own."""

    parts: list[Base64Bytes]
    name: str = "none"


Generate = Annotated[GenerateReqInput, StructBody(), Body()]
Unrouted = Annotated[GenerateReqInput, StructBody(exclude=["routed_dp_rank"]), Body()]
Weights = Annotated[UpdateWeightsFromTensorReqInput, StructBody(), Body()]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()

    @app.post("/generate")
    async def generate(request: Generate) -> dict[str, object]:
        return {"text": request.text, "max_new_tokens": request.sampling_params.max_new_tokens}  # type: ignore[union-attr]

    @app.post("/unrouted")
    async def unrouted(request: Unrouted) -> str:
        return str(request.text)

    @app.post("/update_weights_from_tensor")
    async def update(request: Weights) -> list[int]:
        return [len(part) for part in request.serialized_named_tensors or ()]

    @app.post("/upload")
    async def upload(request: Annotated[Upload, StructBody(), Body()]) -> list[str]:
        return [part.decode() for part in request.parts]

    @app.post("/two")
    async def two(generate: Generate, times: Annotated[int, Body()]) -> str:
        return str(generate.text) * times

    @app.get("/flush_cache")
    async def flush(request: Annotated[FlushCacheReqInput, StructBody(), Body()]) -> float | None:
        return request.timeout_s

    @app.post("/echo")
    async def echo(request: Weights) -> Annotated[UpdateWeightsFromTensorReqInput, StructBody()]:
        return request

    with TestClient(app) as client:
        yield client


def test_a_body_becomes_a_struct_with_defaults(client: TestClient) -> None:
    answer = client.post("/generate", json={"text": "hi"})
    assert (answer.status_code, answer.json()) == (200, {"text": "hi", "max_new_tokens": 128})
    answer = client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 3}})
    assert answer.json()["max_new_tokens"] == 3


def test_every_fault_is_answered_at_its_place(client: TestClient) -> None:
    body = {"sampling_params": {"top_k": "x"}, "stream": 1, "vid": 3, "http_worker_ipc": "ipc://x"}
    answer = client.post("/generate", json=body)
    assert answer.status_code == 422
    found = {tuple(fault["loc"]): (fault["type"], fault["msg"][:30]) for fault in answer.json()["detail"]}
    assert found == {
        ("body", "sampling_params", "top_k"): ("invalid", "Expected `int`, got `str`"),
        ("body", "stream"): ("invalid", "Expected `bool`, got `int`"),
        ("body", "vid"): ("unknown_field", "there is no such field; the fi"),
        ("body", "http_worker_ipc"): ("internal_field", "is set by the engine, not from"),
    }


@pytest.mark.parametrize("name", ["id", "deadline_s", "http_worker_ipc"])
def test_what_the_engine_sets_cannot_be_set_from_outside(client: TestClient, name: str) -> None:
    body = {"serialized_named_tensors": [], name: 1}
    (fault,) = client.post("/update_weights_from_tensor", json=body).json()["detail"]
    assert (fault["loc"], fault["type"]) == (["body", name], "internal_field")


def test_an_app_may_keep_more_to_itself(client: TestClient) -> None:
    assert client.post("/generate", json={"text": "x", "routed_dp_rank": 1}).status_code == 200
    assert client.post("/unrouted", json={"text": "x"}).json() == "x"
    (fault,) = client.post("/unrouted", json={"text": "x", "routed_dp_rank": 1}).json()["detail"]
    assert fault["loc"] == ["body", "routed_dp_rank"]


def test_weights_come_as_base64(client: TestClient) -> None:
    answer = client.post("/update_weights_from_tensor", json={"serialized_named_tensors": ["aGk=", ""]})
    assert (answer.status_code, answer.json()) == (200, [2, 0])
    assert client.post("/upload", json={"parts": ["aGk="]}).json() == ["hi"]


@pytest.mark.parametrize("path", ["/update_weights_from_tensor", "/upload"])
def test_what_is_no_base64_is_said_where_it_is(client: TestClient, path: str) -> None:
    name = "parts" if path == "/upload" else "serialized_named_tensors"
    (fault,) = client.post(path, json={name: ["aGk=", "aGk"]}).json()["detail"]
    assert (fault["loc"], fault["input"]) == (["body", name, 1], "aGk")
    assert fault["msg"].startswith("Expected base64-encoded bytes; 3 characters")


def test_a_large_body_is_not_sent_back(client: TestClient) -> None:
    answer = client.post("/upload", json={"parts": ["a" * 1_000_001], "name": 5})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    ("body", "loc"), [("[1]", ["body"]), ("7", ["body"]), ("null", ["body"]), ("{}", ["body", "parts"])]
)
def test_what_is_no_such_object_is_refused(client: TestClient, body: str, loc: list[str]) -> None:
    answer = client.post("/upload", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert [fault["loc"] for fault in answer.json()["detail"]] == [loc]


def test_it_may_be_one_of_several_parts_of_a_body(client: TestClient) -> None:
    assert client.post("/two", json={"generate": {"text": "ab"}, "times": 2}).json() == "abab"
    answer = client.post("/two", json={"generate": {"text": 1}, "times": 2})
    assert answer.json()["detail"][0]["loc"] == ["body", "generate", "text"]


def test_a_get_may_have_a_body(client: TestClient) -> None:
    assert client.request("GET", "/flush_cache", json={"timeout_s": 1.5}).json() == 1.5
    answer = client.request("GET", "/flush_cache", json={"timeout_s": -1})
    assert answer.json()["detail"][0]["loc"] == ["body", "timeout_s"]


def test_a_struct_can_be_an_answer(client: TestClient) -> None:
    answer = client.post("/echo", json={"serialized_named_tensors": ["aGk="]}).json()
    assert answer["serialized_named_tensors"] == ["aGk="]
    assert answer["id"] == 0


def test_the_documentation_shows_the_fields(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    content: dict[str, Any] = paths["/update_weights_from_tensor"]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["flush_cache"] == {"type": "boolean", "default": True}
    assert not {"id", "deadline_s"} & schema["properties"].keys()
    (items, _) = schema["properties"]["serialized_named_tensors"]["anyOf"]
    assert items["items"]["contentEncoding"] == "base64"


# --- without FastAPI --------------------------------------------------------------------------------


def test_pydantic_models_can_hold_structs() -> None:
    class Job(pydantic.BaseModel):
        params: Annotated[SamplingParams, StructBody()]
        many: list[Annotated[Upload, StructBody()]] = []

    job = Job.model_validate({"params": {"top_k": 3}, "many": [{"parts": ["aGk="]}]})
    assert job.params == SamplingParams(top_k=3)
    assert job.many == [Upload(parts=[b"hi"])]
    assert job.model_dump()["many"] == [{"parts": ["aGk="], "name": "none"}]
    with pytest.raises(pydantic.ValidationError) as caught:
        Job.model_validate({"params": {}, "many": [{"parts": []}, {"parts": ["?"]}]})
    assert [error["loc"] for error in caught.value.errors()] == [("many", 1, "parts", 0)]
    assert Job.model_json_schema()["properties"]["params"]["properties"]["top_k"]["type"] == "integer"


def test_a_struct_passes_as_it_is() -> None:
    adapter = pydantic.TypeAdapter[GenerateReqInput](Annotated[GenerateReqInput, StructBody()])
    struct = GenerateReqInput(text="x")
    assert adapter.validate_python(struct) is struct


def test_it_is_for_structs_only() -> None:
    with pytest.raises(TypeError, match="StructBody is for structs, not for <class 'int'>"):
        pydantic.TypeAdapter(Annotated[int, StructBody()])


def test_the_rest_of_the_package_never_imports_pydantic() -> None:
    code = """
import sys
import vidette_protocol.bodies, vidette_protocol.codec, vidette_protocol.plain
print([name for name in sys.modules if name.partition(".")[0] in ("pydantic", "pydantic_core")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == []
