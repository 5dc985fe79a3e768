"""The body of `POST /v1/responses`: what of it is honoured, and as what.

The fields of `ResponsesRequest` are done as OpenAI says, or as SGLang says for its own additions. Everything
in `REFUSED` is answered with a 400, and everything in `LATER` with a 501, unless it asks for nothing.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import Final

from msgspec import Raw, Struct

from vidette import GenerateReqInput
from vidette.errors import UsageError, unsupported_field
from vidette.service.asked import (
    CONSTRAINTS_LATER,
    NAMES,
    SGLANG_REFUSED,
    Sampled,
    in_words_of,
    sampling_of,
)
from vidette.service.conversation import ContentReader, Conversation, Part, read_role
from vidette.service.errors import shown
from vidette.service.fields import FIELD_BYTES, Fields, Neutral, reader_of
from vidette.service.limits import ServiceLimits

METADATA: Final = 16
"""Most entries of `metadata`; its keys have at most 64 characters, its values 512, as OpenAI says."""
LABEL: Final = 512
"""Most characters of a label that is kept with a response."""


class ResponsesRequest(Sampled, frozen=True, kw_only=True):
    """Honoured fields of the body.

    Args:
        input: a text, or a list of messages.
        instructions: a system message in front, of this response alone.
        max_output_tokens: most output tokens; absent: as many as the context has room for.
        previous_response_id: a response that this one goes on behind.
        store: keep it, to be retrieved and gone on behind.
        background: answer at once, and make it after that; it is retrieved then.
        metadata: what comes back with it.
    """

    input: Raw
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    metadata: dict[str, str] | None = None


class Item(Struct, frozen=True):
    """Honoured fields of an item of the input: those of a message.

    Args:
        type: "message".
        role: as in chat.
        content: a text, or a list of parts.
        id, status: as they came with an answer; nothing depends on them.
    """

    role: str | None = None
    content: Raw | None = None
    type: str = "message"
    id: str | None = None
    status: str | None = None


REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "include": ([],),
        "conversation": (),
        "prompt": (),
        "reasoning": ({}, {"effort": "none"}),
        "truncation": ("disabled",),
        "service_tier": ("auto", "default"),
        "max_tool_calls": (),
        "top_logprobs": (0,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "prompt_cache_retention": (),
        "context_management": (),
        "moderation": (),
        "prompt_cache_options": ({},),
        "background_options": ({},),
        "access_programs": ([],),
        "image": (),
        **SGLANG_REFUSED,
    }
)
"""Not supported yet, each with the values that ask for nothing (null always does)."""
LATER: Final = MappingProxyType[str, Neutral](
    {
        "text": ({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
        "tools": ([],),
        "tool_choice": ("none", "auto"),  # without tools both mean none
        "parallel_tool_calls": (True, False),
        **CONSTRAINTS_LATER,
    }
)
"""Likewise; structured output and tools."""
ITEM_REFUSED: Final = MappingProxyType[str, Neutral](
    {"summary": (), "encrypted_content": (), "phase": ("final_answer",)}
)
ITEM_LATER: Final = MappingProxyType[str, Neutral](
    {"call_id": (), "arguments": (), "name": (), "output": (), "action": (), "tools": ()}
)
PART_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "annotations": ([],),
        "logprobs": ([],),
        "image_url": (),
        "file_id": (),
        "file_data": (),
        "file_url": (),
        "filename": (),
        "detail": (),
        "input_audio": (),
        "refusal": (),
    }
)

BODY: Final = Fields(
    ResponsesRequest,
    REFUSED,
    readers={"instructions": reader_of(str)},  # a prompt
    later=LATER,
    field_bytes=FIELD_BYTES,
)
ITEM: Final = Fields(Item, ITEM_REFUSED, later=ITEM_LATER)
PART: Final = Fields(Part, PART_REFUSED)
TEXT_PARTS: Final = frozenset({"input_text", "output_text"})


def read_response(body: bytes, limits: ServiceLimits) -> tuple[ResponsesRequest, Conversation]:
    """Return what a body asks for, and the messages of its input.

    Raises:
        UsageError: it cannot be honoured; with the field at fault.
    """
    request = BODY.decode(body)
    if request.background and not request.store:
        raise UsageError("background is only allowed with store: true", param="background")
    if request.background and request.stream:
        raise unsupported_field("stream", (False,))
    for key, value in (request.metadata or {}).items():
        if len(request.metadata or ()) > METADATA or len(key) > 64 or len(value) > 512:
            raise UsageError(
                f"metadata is too large: at most {METADATA} keys of 64 characters, with values of 512",
                param="metadata",
            )
    for name, label in (
        ("user", request.user),
        ("safety_identifier", request.safety_identifier),
        ("prompt_cache_key", request.prompt_cache_key),
    ):
        if label is not None and len(label) > LABEL:
            raise UsageError(f"{name} has {len(label)} characters; at most {LABEL} are accepted", param=name)
    return request, _read_input(bytes(request.input), limits)


def _read_input(raw: bytes, limits: ServiceLimits) -> Conversation:
    contents = ContentReader(limits, PART, TEXT_PARTS)
    if not raw.startswith(b"["):
        return [{"role": "user", "content": contents.read(raw, "input")}]
    items = ITEM.decode_many(raw, "input", limits.messages)
    if not items:
        raise UsageError("input is an empty list; give at least one message", param="input")
    conversation = []
    for place, item in enumerate(items):
        where = f"input[{place}]"
        if item.type != "message":
            raise UsageError(
                f"{where}: an item of type {shown(item.type)} is not supported yet; only messages are",
                param=f"{where}.type",
            )
        for name, value in (("role", item.role), ("content", item.content)):
            if value is None:
                raise UsageError(f"{where} has no field {name!r}, which is required", param=f"{where}.{name}")
        content = contents.read(bytes(item.content or b""), f"{where}.content")
        conversation.append({"role": read_role(item.role or "", f"{where}.role"), "content": content})
    return conversation


def rid_of(response_id: str) -> str:
    """Return what the engine calls the request that makes a response.

    Whoever watches the engine sees it, and cannot find the id by it, which opens what was said.
    """
    return f"response-{hashlib.sha256(response_id.encode()).hexdigest()[:32]}"


def to_respond(request: ResponsesRequest, prompt: str, rid: str) -> GenerateReqInput:
    """Return the request as the engine takes it.

    Args:
        request: as it was read.
        prompt: its conversation as a text.
        rid: its name.
    """
    return GenerateReqInput(
        rid=rid,
        text=prompt,
        stream=request.stream,
        priority=request.priority,
        extra_key=request.extra_key,
        cache_salt=request.cache_salt,
        sampling_params=sampling_of(request, request.max_output_tokens),
    )


def in_words_of_responses(error: UsageError) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used."""
    return in_words_of(error, "input", {**NAMES, "max_new_tokens": "max_output_tokens"})
