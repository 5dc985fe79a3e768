"""What a type checker makes of the bridges to JSON, FastAPI and messages of a user's own; never run."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, assert_type

from pydantic import TypeAdapter

import vidette
from vidette_protocol import (
    Base64Bytes,
    BodyError,
    BodyType,
    Codec,
    front_codec,
    hook_custom_types,
    msgspec_to_builtins,
)
from vidette_protocol.messages import ControlOutput, ControlReq, PickleWrapper, SamplingParams
from vidette_protocol.pydantic import StructBody


class AskOutput(ControlOutput, tag=401, kw_only=True, frozen=True):
    """An answer."""

    value: int = 0


class Ask(ControlReq, tag=400, kw_only=True, frozen=True):
    """A question."""

    output: ClassVar = AskOutput

    text: str


async def answer(question: Ask) -> AskOutput:
    return AskOutput(id=question.id, value=len(question.text))


async def not_an_answer(question: Ask) -> int:
    return question.id


async def messages_of_a_users_own() -> None:
    codec = hook_custom_types(front_codec(), Ask, receives=False)
    assert_type(codec, Codec)
    assert_type(codec.mirrored(), Codec)
    handlers: vidette.Handlers = {Ask: answer}
    async with vidette.open_engine("toy", codec=codec, handlers=handlers) as engine:
        assert_type(await engine.control(Ask(id=0, text="x")), ControlOutput)
    vidette.open_engine("toy", codec=codec, handlers={Ask: answer})
    vidette.open_engine("toy", handlers={Ask: not_an_answer})  # type: ignore[dict-item]
    hook_custom_types(codec, int)  # type: ignore[arg-type]


def bodies() -> None:
    body = BodyType(SamplingParams, exclude=["n"])
    assert_type(body, BodyType[SamplingParams])
    try:
        assert_type(body.read({}), SamplingParams)
    except BodyError as error:
        assert_type(error.faults[0].place, tuple[str | int, ...])
    BodyType(int)  # type: ignore[type-var]
    parts: list[Base64Bytes] = [b"bytes"]
    assert_type(parts[0], bytes)
    adapter: TypeAdapter[SamplingParams] = TypeAdapter(Annotated[SamplingParams, StructBody()])
    assert_type(adapter.validate_python({}), SamplingParams)


def plain() -> None:
    assert_type(msgspec_to_builtins(SamplingParams()), Any)
    assert_type(PickleWrapper(data=b"bytes").data, bytes)
