"""OpenAI's older APIs: `POST /v1/chat/completions`, `POST /v1/completions` and `GET /v1/models`.

A stream of chat is a chunk for each delta that has text, the first with the role in it (no empty chunk ahead
of the first token, which would only look fast), then a chunk with the finish reason. If several answers were
asked for, their chunks come as they are made, told apart by their index. Then comes the usage if it was asked
for, then `[DONE]`. If log probabilities were asked for, a delta without text makes a chunk as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType

from vidette import Completion, Delta, Engine, OperationName, Stream, TokenLogprob
from vidette.errors import DuplicateRequest, UsageError
from vidette.service.chat import in_words_of_chat, read_chat, to_generate
from vidette.service.completions import (
    CompletionReader,
    CompletionShape,
    Echoes,
    in_words_of_completions,
    to_complete,
)
from vidette.service.errors import ModelNotFound, shown
from vidette.service.generation import answer_generation, answer_group
from vidette.service.limits import ServiceLimits
from vidette.service.responses import Exchange, plain_event
from vidette.service.usage import Usage, UsageTold


class RankedToken(Struct, frozen=True):
    """A token, and how probable it was.

    Args:
        token: its text; what is no whole character is U+FFFD.
        logprob: its log probability.
        bytes: what it stands for.
    """

    token: str
    logprob: float | None
    bytes: list[int]


class ChosenToken(RankedToken, frozen=True):
    """An output token, and what was most probable in its place, the most probable first."""

    top_logprobs: tuple[RankedToken, ...] = ()


class ChatLogprobs(Struct, frozen=True):
    """Of each token of an answer, or of those that a chunk adds to it."""

    content: tuple[ChosenToken, ...]
    refusal: None = None


_encode: Final = msgspec.json.Encoder().encode
_NO_TEXT: Final = b'"content":""'
"""Nothing else in a chunk looks like this: quotes inside of strings are escaped."""


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """A message, or what a chunk adds to one."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class Choice(Struct, frozen=True):
    """One answer, or what a chunk adds to it: `message` or `delta` is set.

    With `finish_reason` comes SGLang's `matched_stop`: the token, the text or the pattern that ended it.
    """

    index: int = 0
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | UnsetType | None = UNSET


class ChatCompletion(Struct, frozen=True):
    """An answer, or a chunk of one; `usage` is absent in the chunks of a request that did not ask for it."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | UnsetType | None = UNSET


class ChatShape:
    """Answers in OpenAI's shape.

    Args:
        name: `id` of the answer, and of all chunks of it.
        model: the name the model is served under.
        usage: tells what it took.
        bytes_of: returns the bytes of a token.
    """

    operation: ClassVar[OperationName] = "chat"

    def __init__(self, name: str, model: str, *, usage: UsageTold, bytes_of: Callable[[int], bytes]) -> None:
        self._id = name
        self._model = model
        self._usage = usage
        self._bytes_of = bytes_of
        self._created = int(time.time())
        self._begun: set[int] = set()
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        """Of an answer that has begun, what stands before and behind the text in the event of text alone."""

    def whole(self, streams: Sequence[Stream]) -> ChatCompletion:
        """Return the answer of requests that were read to their ends."""
        choices = tuple(self._choice(stream.completion(), index) for index, stream in enumerate(streams))
        return ChatCompletion(
            self._id, "chat.completion", self._created, self._model, choices, self._usage.of(streams)
        )

    def _choice(self, done: Completion, index: int) -> Choice:
        return Choice(
            index,
            message=ChatMessage(role="assistant", content=done.text),
            logprobs=self._logprobs(done.logprobs),
            finish_reason=done.finish_reason.type,
            matched_stop=done.finish_reason.matched,
        )

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Sequence[ChatCompletion | bytes]:
        """Return the chunks that a delta makes; a token that completes no character makes none by itself."""
        reason, frame = delta.finish_reason, self._frames.get(index)
        if frame is not None and reason is None and not delta.logprobs:  # nearly all are such
            return (frame[0] + _encode(delta.text) + frame[1],) if delta.text else ()
        self._usage.note(index, stream)
        chunks = []
        logprobs = self._logprobs(delta.logprobs)
        first = index not in self._begun
        if delta.text or logprobs is not None or (reason is not None and first):
            message = ChatMessage(role="assistant" if first else None, content=delta.text)
            chunks.append(self._chunk(Choice(index, delta=message, logprobs=logprobs)))
            if first:
                self._begun.add(index)
                if not self._usage.in_all_chunks:
                    self._frames[index] = self._frame(index)
        if reason is not None:
            end = Choice(index, delta=ChatMessage(), finish_reason=reason.type, matched_stop=reason.matched)
            chunks.append(self._chunk(end))
        return chunks

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        event = plain_event(self._chunk(Choice(index, delta=ChatMessage(content=""))))
        before, after = event.split(_NO_TEXT)
        return before + _NO_TEXT[:-2], after

    def ending(self, streams: Sequence[Stream]) -> Iterator[ChatCompletion]:
        """Yield the usage, if it was asked for."""
        if (usage := self._usage.at_end(streams)) is not None:
            yield self._chunk(usage=usage)

    def _chunk(self, *choices: Choice, usage: Usage | None = None) -> ChatCompletion:
        told = usage or self._usage.in_chunk()
        return ChatCompletion(self._id, "chat.completion.chunk", self._created, self._model, choices, told)

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not logprobs:
            return None
        return ChatLogprobs(tuple(map(self._chosen, logprobs)))

    def _chosen(self, one: TokenLogprob) -> ChosenToken:
        raw = self._bytes_of(one.token_id)
        top = tuple(self._ranked(token_id, value) for token_id, value in one.top)
        return ChosenToken(raw.decode(errors="replace"), one.logprob, list(raw), top)

    def _ranked(self, token_id: int, logprob: float) -> RankedToken:
        raw = self._bytes_of(token_id)
        return RankedToken(raw.decode(errors="replace"), logprob, list(raw))


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
        self._completions = CompletionReader(engine.max_total_tokens)
        name = engine.info.name
        self._card = ModelCard(name, int(time.time()), name, engine.max_total_tokens)

    async def chat_completions(self, exchange: Exchange) -> None:
        """Answer `POST /v1/chat/completions`."""
        request, messages = read_chat(exchange.take_body(), self._limits)
        self.check_model(request.model)
        rid = uuid4().hex if request.rid is None else request.rid
        shape = ChatShape(
            rid,
            self._card.id,
            usage=UsageTold(request.stream_options, request.n),
            bytes_of=self._engine.token_bytes,
        )
        prompt = await self._engine.render_chat(messages)
        answer = answer_group if request.n > 1 else answer_generation
        try:
            await answer(exchange, self._engine, to_generate(request, prompt, rid), shape)
        except DuplicateRequest:
            raise
        except UsageError as error:
            raise in_words_of_chat(error, request) from error

    async def completions(self, exchange: Exchange) -> None:
        """Answer `POST /v1/completions`."""
        request, prompts = self._completions.read(exchange.take_body())
        self.check_model(request.model)
        rid = uuid4().hex if request.rid is None else request.rid
        asked = to_complete(request, prompts, rid)
        shape = CompletionShape(
            rid,
            self._card.id,
            engine=self._engine,
            request=request,
            echoes=Echoes(prompts, self._engine) if request.echo else None,
        )
        answer = answer_generation if len(prompts) == request.n == 1 else answer_group
        try:
            await answer(exchange, self._engine, asked, shape)
        except DuplicateRequest:
            raise
        except UsageError as error:
            raise in_words_of_completions(error, request) from error

    async def list_models(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models`."""
        await exchange.send_json(ModelList((self._card,)))

    async def show_model(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models/{id}`."""
        self.check_model(exchange.path_params["id"])
        await exchange.send_json(self._card)

    def check_model(self, name: str | None) -> None:
        """Check that a request is for the model that is served; None: it does not say.

        Raises:
            ModelNotFound: it is not.
        """
        if name is not None and name != self._card.id:
            raise ModelNotFound(
                f"there is no model {shown(name)} here; this server serves {self._card.id!r}",
                param="model",
                code="model_not_found",
            )
