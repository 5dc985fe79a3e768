"""Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`, with its errors.

A stream is `message_start`, `content_block_start`, `ping`, a `content_block_delta` for each delta that has
text, `content_block_stop`, `message_delta` with what ended it and what it took, and `message_stop`. None of
them is sent before the first token is there, so that the status is decided by then; an answer without text
has no block. What goes wrong after that is an `error` event, and the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, Final
from uuid import uuid4

from msgspec import Struct

from vidette import Delta, Engine, FinishReason, OperationName, Stream
from vidette.errors import UsageError
from vidette.service.anthropic_body import (
    CountRequest,
    in_words_of_anthropic,
    read_anthropic,
    read_count,
    to_message,
)
from vidette.service.conversation import Conversation
from vidette.service.errors import body_of, status_of
from vidette.service.generation import answer_generation
from vidette.service.limits import ServiceLimits
from vidette.service.openai import OpenAI
from vidette.service.responses import Dialect, Exchange, named_event

OVERLOADED: Final = 529
"""That API's own status for what others say with 503."""
TYPES: Final = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        OVERLOADED: "overloaded_error",
    }
)
"""`type` of an error by its status, where that does not just say whose fault it was."""
Event = dict[str, Any]


def status_in_anthropics_words(error: Exception) -> int:
    """Return the HTTP status of an error."""
    status = status_of(error)
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return HTTPStatus.BAD_REQUEST
    return OVERLOADED if status == HTTPStatus.SERVICE_UNAVAILABLE else status


def error_in_anthropics_words(error: Exception) -> Event:
    """Return the body of an error, which is the event of one as well."""
    status = status_in_anthropics_words(error)
    usual = "invalid_request_error" if status < 500 else "api_error"
    detail = {"type": TYPES.get(status, usual), "message": body_of(error).error.message}
    return {"type": "error", "error": detail}


ANTHROPIC: Final = Dialect(
    frame=named_event, done=b"", error=error_in_anthropics_words, status=status_in_anthropics_words
)


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """The one block of a message that has text."""

    text: str


class MessageUsage(Struct, frozen=True):
    """What a message took; of the prompt, `input_tokens` are those that had to be computed."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class AnthropicAnswer(Struct, frozen=True, kw_only=True):
    """A message; in a stream as it is at its beginning."""

    id: str
    model: str
    usage: MessageUsage
    content: tuple[TextBlock, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class TokenCount(Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int


class AnthropicShape:
    """Answers in the shape of this API.

    Args:
        model: the name the model is served under.
    """

    operation: ClassVar[OperationName] = "chat"

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = f"msg_{uuid4().hex}"
        self._begun = False
        self._in_block = False

    def whole(self, streams: Sequence[Stream]) -> AnthropicAnswer:
        """Return the message, whose request was read to its end."""
        (stream,) = streams
        done = stream.completion()
        reason, sequence = _ending(done.finish_reason)
        return AnthropicAnswer(
            id=self._id,
            model=self._model,
            usage=_usage_of(stream),
            content=(TextBlock(done.text),) if done.text else (),
            stop_reason=reason,
            stop_sequence=sequence,
        )

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Iterator[Event]:  # noqa: ARG002  it is 0
        """Yield the events that a delta makes; a token that completes no character makes none by itself."""
        if not self._begun:
            self._begun = True
            usage = _usage_of(stream)
            message = AnthropicAnswer(id=self._id, model=self._model, usage=usage)
            yield {"type": "message_start", "message": message}
        if delta.text and not self._in_block:
            self._in_block = True
            yield {"type": "content_block_start", "index": 0, "content_block": TextBlock("")}
            yield {"type": "ping"}
        if delta.text:
            piece = {"type": "text_delta", "text": delta.text}
            yield {"type": "content_block_delta", "index": 0, "delta": piece}
        if delta.finish_reason is not None:
            if self._in_block:
                yield {"type": "content_block_stop", "index": 0}
            reason, sequence = _ending(delta.finish_reason)
            ended = {"stop_reason": reason, "stop_sequence": sequence}
            yield {"type": "message_delta", "delta": ended, "usage": _usage_of(stream)}
            yield {"type": "message_stop"}

    def ending(self, streams: Sequence[Stream]) -> tuple[Event, ...]:  # noqa: ARG002  nothing to say of them
        """Return nothing: the last event says all."""
        return ()


class Anthropic:
    """The endpoints of one engine.

    Args:
        engine: what answers.
        limits: bounds of the service.
        openai: knows which model is served.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, openai: OpenAI) -> None:
        self._engine = engine
        self._limits = limits
        self._openai = openai

    async def messages(self, exchange: Exchange) -> None:
        """Answer `POST /v1/messages`."""
        request, conversation = read_anthropic(exchange.take_body(), self._limits)
        prompt = await self._render(request, conversation)
        shape = AnthropicShape(self._engine.info.name)
        try:
            await answer_generation(exchange, self._engine, to_message(request, prompt), shape)
        except UsageError as error:
            raise in_words_of_anthropic(error) from error

    async def count_tokens(self, exchange: Exchange) -> None:
        """Answer `POST /v1/messages/count_tokens`."""
        request, conversation = read_count(exchange.take_body(), self._limits)
        prompt = await self._render(request, conversation)
        try:
            ids = await self._engine.tokenize(prompt)
        except UsageError as error:
            raise in_words_of_anthropic(error) from error
        await exchange.send_json(TokenCount(len(ids)))

    async def _render(self, request: CountRequest, conversation: Conversation) -> str:
        self._openai.check_model(request.model)
        return await self._engine.render_chat(conversation)


def _ending(reason: FinishReason) -> tuple[str, str | None]:
    """Return why a message ended, and the text that did it."""
    if reason.type == "length":
        return "max_tokens", None
    if isinstance(reason.matched, str):
        return "stop_sequence", reason.matched
    return "end_turn", None


def _usage_of(stream: Stream) -> MessageUsage:
    cached = stream.served.cached_tokens
    return MessageUsage(stream.prompt_tokens - cached, stream.completion_tokens, cached)
