"""The body of Anthropic's `POST /v1/messages`: what of it is honoured, and as what.

Everything in `REFUSED` is answered with a 400, as that API knows no 501, unless it asks for nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec import Raw, Struct

from vidette import GenerateReqInput, SamplingParams
from vidette.errors import UsageError
from vidette.service.asked import in_words_of
from vidette.service.conversation import ContentReader, Conversation, Part
from vidette.service.errors import shown
from vidette.service.fields import FIELD_BYTES, Fields, Neutral, reader_of
from vidette.service.limits import ServiceLimits


class CountRequest(Struct, frozen=True, kw_only=True):
    """Honoured fields of the body of `/v1/messages/count_tokens`.

    Args:
        model: the name the model is served under.
        messages: the conversation, of "user" and "assistant".
        system: what is said before it: a text, or a list of text parts.
    """

    model: str
    messages: Raw
    system: Raw | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """Honoured fields of the body of `/v1/messages`.

    Args:
        max_tokens: most output tokens.
        stop_sequences: texts that end the answer where they appear.
        stream: answer in events.
        metadata: labels, on which nothing in an answer depends.

    The others are as in SamplingParams.
    """

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    metadata: dict[str, str | None] | None = None


class AnthropicMessage(Struct, frozen=True):
    """Honoured fields of a message.

    Args:
        role: "user" or "assistant".
        content: a text, or a list of text parts.
    """

    role: str
    content: Raw


COUNT_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "tools": ([],),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),  # without tools both mean none
        "thinking": ({"type": "disabled"},),
        "mcp_servers": ([],),
        "context_management": (),
        "output_config": ({},),
        "output_format": (),
        "speed": ("standard",),
        "user_profile_id": (),
        "workspace_id": (),
        "cache_control": ({"type": "ephemeral"},),  # what can be cached is
    }
)
"""Not supported yet, each with the values that ask for nothing (null always does)."""
REFUSED: Final = MappingProxyType[str, Neutral](
    {
        **COUNT_REFUSED,
        "container": (),
        "service_tier": ("auto", "standard_only"),
        "inference_geo": (),
        "diagnostics": (),
    }
)
HINTS: Final = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"})
"""Values of `cache_control`: prompts are cached in any case, for as long as there is room."""
PART_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "cache_control": HINTS,
        "citations": ([], {"enabled": False}),
        "source": (),
        "title": (),
        "context": (),
        "id": (),
        "input": (),
        "name": (),
        "tool_use_id": (),
        "content": (),
        "is_error": (False,),
        "thinking": (),
        "signature": (),
        "data": (),
    }
)

_PROMPTS = MappingProxyType({"system": reader_of(Raw)})
BODY: Final = Fields(MessagesRequest, REFUSED, _PROMPTS, field_bytes=FIELD_BYTES)
COUNT: Final = Fields(CountRequest, COUNT_REFUSED, _PROMPTS, field_bytes=FIELD_BYTES)
MESSAGE: Final = Fields(AnthropicMessage, {})
PART: Final = Fields(Part, PART_REFUSED)
TEXT_PARTS: Final = frozenset({"text"})
ROLES: Final = ("user", "assistant")


def read_anthropic(body: bytes, limits: ServiceLimits) -> tuple[MessagesRequest, Conversation]:
    """Return what a body asks for, and its conversation as a template takes it.

    Raises:
        UsageError: it cannot be honoured; with the field at fault.
    """
    request = BODY.decode(body)
    if request.max_tokens < 1:
        raise UsageError(f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens")
    return request, _read_conversation(request, limits)


def read_count(body: bytes, limits: ServiceLimits) -> tuple[CountRequest, Conversation]:
    """Return what a body asks the tokens of.

    Raises:
        UsageError: as `read_anthropic`.
    """
    request = COUNT.decode(body)
    return request, _read_conversation(request, limits)


def _read_conversation(request: CountRequest, limits: ServiceLimits) -> Conversation:
    contents = ContentReader(limits, PART, TEXT_PARTS)
    conversation = []
    if request.system is not None:
        conversation.append({"role": "system", "content": contents.read(bytes(request.system), "system")})
    messages = MESSAGE.decode_many(bytes(request.messages), "messages", limits.messages)
    if not messages:
        raise UsageError("messages is empty; a conversation has at least one message", param="messages")
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if message.role not in ROLES:
            raise UsageError(
                f"{where}.role is {shown(message.role)}; it must be one of {', '.join(ROLES)}",
                param=f"{where}.role",
            )
        content = contents.read(bytes(message.content), f"{where}.content")
        conversation.append({"role": message.role, "content": content})
    if conversation[-1]["role"] == "assistant":
        raise UsageError(
            "the last of messages is of the assistant; to go on with what it has said is not supported yet",
            param=f"messages[{len(messages) - 1}].role",
        )
    return conversation


def to_message(request: MessagesRequest, prompt: str) -> GenerateReqInput:
    """Return the request as the engine takes it.

    Args:
        request: as it was read.
        prompt: its conversation as a text.
    """
    return GenerateReqInput(
        text=prompt,
        stream=request.stream,
        sampling_params=SamplingParams(
            max_new_tokens=request.max_tokens,
            stop=request.stop_sequences or None,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
        ),
    )


def in_words_of_anthropic(error: UsageError) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used."""
    names = {"max_new_tokens": "max_tokens"}
    if (error.param or "").startswith("stop"):
        names["stop"] = "stop_sequences"
    return in_words_of(error, "messages", names)
