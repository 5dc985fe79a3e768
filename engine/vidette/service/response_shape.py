"""The objects of `/v1/responses`, and the events of a stream of one.

A stream is `response.created`, `response.in_progress`, `response.output_item.added`,
`response.content_part.added`, then a `response.output_text.delta` for each delta that has text, then
`response.output_text.done`, `response.content_part.done`, `response.output_item.done`, and last
`response.completed`, `response.incomplete` or `response.failed`. Their `sequence_number` counts from 0. None
of them is sent before the first token is there, so that the status is decided by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from vidette import Delta, FinishReason, OperationName, Stream
from vidette.service.errors import body_of

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Event = dict[str, Any]


class OutputText(Struct, frozen=True):
    """The one part of a message."""

    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(Struct, frozen=True):
    """The one item of an output."""

    id: str
    status: Status
    content: tuple[OutputText, ...]
    type: str = "message"
    role: str = "assistant"


class InputDetails(Struct, frozen=True):
    """Tokens of the input that were not computed again, and those written to a cache for money: none."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    """Tokens of the output that were thoughts: none."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """What a response took."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()


class IncompleteDetails(Struct, frozen=True):
    """Why there is no more of it."""

    reason: str = "max_output_tokens"


class Failure(Struct, frozen=True):
    """What went wrong."""

    message: str
    code: str = "server_error"


class Reasoning(Struct, frozen=True):
    """How it was thought about: not at all."""

    effort: None = None
    summary: None = None


class TextFormat(Struct, frozen=True):
    """What its text has to be: any text."""

    type: str = "text"


class TextConfig(Struct, frozen=True):
    """How its text is made."""

    format: TextFormat = TextFormat()
    verbosity: str = "medium"


class Response(Struct, frozen=True, kw_only=True):
    """A response; the fields are OpenAI's, those of what is not supported with what means nothing."""

    id: str
    created_at: int
    model: str
    status: Status
    object: str = "response"
    background: bool = False
    completed_at: int | None = None
    conversation: None = None
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: None = None
    metadata: dict[str, str]
    output: tuple[OutputMessage, ...] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning = Reasoning()
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: TextConfig = TextConfig()
    tool_choice: str = "auto"
    tools: tuple[()] = ()
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class Deleted(Struct, frozen=True):
    """What is answered when a response was deleted."""

    id: str
    object: str = "response"
    deleted: bool = True


def ended(begun: Response, stream: Stream, message_id: str, reason: FinishReason) -> Response:
    """Return a response that has come to its end.

    Args:
        begun: as it was before.
        stream: read to its end.
        message_id: of the message that is its output.
        reason: how it ended.
    """
    status: Status = "incomplete" if reason.type == "length" else "completed"
    return replace(
        begun,
        status=status,
        completed_at=int(time.time()) if status == "completed" else None,
        incomplete_details=IncompleteDetails() if status == "incomplete" else None,
        output=(OutputMessage(message_id, status, (OutputText(stream.text),)),),
        usage=ResponseUsage(
            stream.prompt_tokens,
            InputDetails(stream.served.cached_tokens),
            stream.completion_tokens,
            stream.prompt_tokens + stream.completion_tokens,
        ),
    )


def failed(begun: Response, error: Exception) -> Response:
    """Return a response that has failed."""
    return replace(begun, status="failed", error=Failure(body_of(error).error.message))


class ResponseShape:
    """Answers in the shape of this API.

    Args:
        begun: the response as it is while it is made.
        message_id: of the message that is its output.
        keep: called with the response once it has ended, before that is said.
    """

    operation: ClassVar[OperationName] = "chat"

    def __init__(self, begun: Response, message_id: str, keep: Callable[[Response], None]) -> None:
        self._begun = begun
        self._message_id = message_id
        self._keep = keep
        self._said = 0
        self._place = {"item_id": message_id, "output_index": 0, "content_index": 0}

    def whole(self, streams: Sequence[Stream]) -> Response:
        """Return the response, whose request was read to its end."""
        (stream,) = streams
        return self._end(stream, stream.completion().finish_reason)

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Iterator[Event]:  # noqa: ARG002  it is 0
        """Yield the events that a delta makes; a token that completes no character makes none by itself."""
        if not self._said:
            yield self._event("created", response=self._begun)
            yield self._event("in_progress", response=self._begun)
            item = OutputMessage(self._message_id, "in_progress", ())
            yield self._event("output_item.added", output_index=0, item=item)
            yield self._event("content_part.added", **self._place, part=OutputText(""))
        if delta.text:
            yield self._event("output_text.delta", **self._place, delta=delta.text, logprobs=())
        if delta.finish_reason is not None:
            response = self._end(stream, delta.finish_reason)
            (item,) = response.output
            (part,) = item.content
            yield self._event("output_text.done", **self._place, text=part.text, logprobs=())
            yield self._event("content_part.done", **self._place, part=part)
            yield self._event("output_item.done", output_index=0, item=item)
            yield self._event(response.status, response=response)

    def ending(self, streams: Sequence[Stream]) -> tuple[Event, ...]:  # noqa: ARG002  nothing to say of them
        """Return nothing: the last event says all."""
        return ()

    def failure(self, error: Exception) -> Event:
        """Return the event that an error in the midst of a stream makes."""
        return self._event("failed", response=failed(self._begun, error))

    def _end(self, stream: Stream, reason: FinishReason) -> Response:
        response = ended(self._begun, stream, self._message_id, reason)
        self._keep(response)
        return response

    def _event(self, name: str, **fields: Any) -> Event:
        self._said += 1
        return {"type": f"response.{name}", "sequence_number": self._said - 1, **fields}
