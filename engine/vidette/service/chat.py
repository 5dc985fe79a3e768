"""The body of `POST /v1/chat/completions`: what of it is honoured, and as what.

The fields of `ChatRequest` are done as OpenAI says, or as SGLang says for its own additions. Everything in
`REFUSED` is answered with a 400, and everything in `LATER` with a 501, unless it asks for nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec import Raw, Struct

from vidette import GenerateReqInput
from vidette.errors import UsageError
from vidette.service.asked import (
    CONSTRAINTS_LATER,
    NAMES,
    SGLANG_REFUSED,
    Asked,
    check_stream_options,
    in_words_of,
    read_stream_options,
    sampling_of,
)
from vidette.service.conversation import ContentReader, Conversation, Part, read_role
from vidette.service.fields import FIELD_BYTES, Fields, Neutral
from vidette.service.limits import ServiceLimits


class Message(Struct, frozen=True):
    """Honoured fields of a message.

    Args:
        role: "system", "developer" (another name for it), "user" or "assistant".
        content: a text, or a list of text parts, which are put together with nothing between them.
    """

    role: str
    content: Raw


class ChatRequest(Asked, frozen=True, kw_only=True):
    """Honoured fields of the body.

    Args:
        messages: the conversation.
        max_tokens: most output tokens; absent: as many as the context has room for.
        max_completion_tokens: the newer name of max_tokens.
        logprobs: report the log probability of each output token.
        top_logprobs: how many of the most probable tokens to report in its place; with `logprobs` only.
    """

    messages: Raw
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None


REFUSED: Final = MappingProxyType[str, Neutral](
    {
        # OpenAI's
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "metadata": ({},),  # goes with `store`
        "web_search_options": (),
        "prompt_cache_retention": (),
        "prompt_cache_options": ({},),
        "moderation": (),
        # SGLang's
        "continue_final_message": (False,),
        "separate_reasoning": (True,),
        "stream_reasoning": (True,),
        "chat_template_kwargs": ({},),
        "input_ids": (),
        **SGLANG_REFUSED,
    }
)
"""Not supported yet, each with the values that ask for nothing (null always does)."""
LATER: Final = MappingProxyType[str, Neutral](
    {
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),  # without tools both mean none
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        **CONSTRAINTS_LATER,
    }
)
"""Likewise; structured output and tools."""

# Clients send answers back with all of their fields.
MESSAGE_REFUSED: Final = MappingProxyType[str, Neutral](
    {"name": (), "refusal": (), "audio": (), "annotations": ([],), "reasoning_content": ("",)}
)
MESSAGE_LATER: Final = MappingProxyType[str, Neutral](
    {"tool_calls": ([],), "tool_call_id": (), "function_call": ()}
)
PART_REFUSED: Final = MappingProxyType[str, Neutral](
    {"image_url": (), "video_url": (), "audio_url": (), "input_audio": (), "file": (), "refusal": ()}
)

BODY: Final = Fields(
    ChatRequest,
    REFUSED,
    readers={"stream_options": read_stream_options},
    later=LATER,
    field_bytes=FIELD_BYTES,
)
MESSAGE: Final = Fields(Message, MESSAGE_REFUSED, later=MESSAGE_LATER)
PART: Final = Fields(Part, PART_REFUSED)
TEXT_PARTS: Final = frozenset({"text"})


def read_chat(body: bytes, limits: ServiceLimits) -> tuple[ChatRequest, Conversation]:
    """Return what a body asks for, and its conversation as a template takes it.

    Raises:
        UsageError: it cannot be honoured; with the field at fault.
    """
    request = BODY.decode(body)
    check_stream_options(request)
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise UsageError(
            f"max_tokens is {old} and max_completion_tokens, its newer name, is {new}; give one of them",
            param="max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise UsageError("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
    return request, read_messages(bytes(request.messages), limits)


def read_messages(raw: bytes, limits: ServiceLimits) -> Conversation:
    """Return the conversation that a list of messages is.

    Raises:
        UsageError: it cannot be honoured; with the field at fault.
    """
    messages = MESSAGE.decode_many(raw, "messages", limits.messages)
    if not messages:
        raise UsageError("messages is empty; a conversation has at least one message", param="messages")
    contents = ContentReader(limits, PART, TEXT_PARTS)
    conversation = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        content = contents.read(bytes(message.content), f"{where}.content")
        conversation.append({"role": read_role(message.role, f"{where}.role"), "content": content})
    return conversation


def to_generate(request: ChatRequest, prompt: str, rid: str) -> GenerateReqInput:
    """Return the request as the engine takes it.

    Args:
        request: as it was read.
        prompt: its conversation as a text.
        rid: its name.
    """
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return GenerateReqInput(
        rid=rid,
        text=prompt,
        stream=request.stream,
        return_logprob=request.logprobs,
        top_logprobs_num=request.top_logprobs or 0,
        priority=request.priority,
        extra_key=request.extra_key,
        cache_salt=request.cache_salt,
        sampling_params=sampling_of(request, most),
    )


def in_words_of_chat(error: UsageError, request: ChatRequest) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used."""
    most = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    return in_words_of(error, "messages", {**NAMES, "max_new_tokens": most})
