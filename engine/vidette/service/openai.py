"""OpenAI's shapes: `POST /v1/chat/completions` and `GET /v1/models`.

A stream is a chunk for each delta that has text, the first with the role in it (no empty chunk ahead of the
first token, which would only look fast), then a chunk with the finish reason, then the usage if it was asked
for, then `[DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from vidette import Delta, Engine, Stream
from vidette.errors import DuplicateRequest, UsageError
from vidette.service.chat import in_words_of_chat, read_chat, to_generate
from vidette.service.errors import ModelNotFound, shown
from vidette.service.generation import answer_generation
from vidette.service.limits import ServiceLimits
from vidette.service.responses import Exchange


class CachedTokens(Struct, frozen=True):
    """Tokens of a prompt that were not computed again."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """What a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens = CachedTokens()


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """A message, or what a chunk adds to one."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class Choice(Struct, frozen=True):
    """One answer, or what a chunk adds to it: `message` or `delta` is set."""

    index: int = 0
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: None = None
    finish_reason: str | None = None


class ChatCompletion(Struct, frozen=True):
    """An answer, or a chunk of one; `usage` is absent in the chunks of a request that did not ask for it."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | UnsetType | None = UNSET


class ChatShape:
    """One request's answer in OpenAI's shape.

    Args:
        model: the name the model is served under.
        include_usage: whether a stream ends with the usage.
    """

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._model = model
        self._include_usage = include_usage
        self._created = int(time.time())
        self._role: Literal["assistant"] | None = "assistant"

    def whole(self, stream: Stream) -> ChatCompletion:
        """Return the answer of a request that was read to its end."""
        done = stream.completion()
        message = ChatMessage(role="assistant", content=done.text)
        choice = Choice(message=message, finish_reason=done.finish_reason.type)
        return ChatCompletion(
            done.rid, "chat.completion", self._created, self._model, (choice,), _usage(stream)
        )

    def pieces(self, stream: Stream, delta: Delta) -> Iterator[ChatCompletion]:
        """Yield the chunks that a delta makes; a token that completes no character makes none."""
        reason = delta.finish_reason
        if delta.text or (reason is not None and self._role):
            message = ChatMessage(role=self._role, content=delta.text)
            self._role = None
            yield self._chunk(stream, Choice(delta=message))
        if reason is not None:
            yield self._chunk(stream, Choice(delta=ChatMessage(), finish_reason=reason.type))
            if self._include_usage:
                yield self._chunk(stream, usage=_usage(stream))

    def _chunk(self, stream: Stream, *choices: Choice, usage: Usage | None = None) -> ChatCompletion:
        return ChatCompletion(
            stream.rid,
            "chat.completion.chunk",
            self._created,
            self._model,
            choices,
            usage if self._include_usage else UNSET,
        )


class ModelCard(Struct, frozen=True):
    """A model that is served."""

    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "vidette"


class ModelList(Struct, frozen=True):
    """All models that are served."""

    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"


class OpenAI:
    """The endpoints of one engine.

    Args:
        engine: what answers.
        limits: bounds of the service.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits) -> None:
        self._engine = engine
        self._limits = limits
        name = engine.info.name
        self._card = ModelCard(name, int(time.time()), name, engine.max_total_tokens)

    async def chat_completions(self, exchange: Exchange) -> None:
        """Answer `POST /v1/chat/completions`."""
        request, messages = read_chat(exchange.take_body(), self._limits)
        self._check_model(request.model)
        options = request.stream_options
        shape = ChatShape(self._card.id, include_usage=options is not None and options.include_usage)
        prompt = await self._engine.render_chat(messages)
        try:
            await answer_generation(exchange, self._engine, to_generate(request, prompt), shape)
        except DuplicateRequest:
            raise
        except UsageError as error:
            raise in_words_of_chat(error, request) from error

    async def list_models(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models`."""
        await exchange.send_json(ModelList((self._card,)))

    async def show_model(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models/{id}`."""
        self._check_model(exchange.path_params["id"])
        await exchange.send_json(self._card)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._card.id:
            raise ModelNotFound(
                f"there is no model {shown(name)} here; this server serves {self._card.id!r}",
                param="model",
                code="model_not_found",
            )


def _usage(stream: Stream) -> Usage:
    prompt, output = stream.prompt_tokens, stream.completion_tokens
    return Usage(prompt, output, prompt + output)
