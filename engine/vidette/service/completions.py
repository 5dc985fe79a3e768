"""`POST /v1/completions`: what of its body is honoured, and the shape of its answers.

There is a choice for each answer, those to the first prompt first. The last chunk of a choice has what is
left of its text, and the finish reason; with `echo`, the first has the prompt in front of the text.

Log probabilities are in the old form: lists side by side, of the prompt's tokens as well with `echo`. A token
is its text, or `bytes:\\xHH` for each of its bytes if these are no whole characters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from vidette import (
    Delta,
    Engine,
    FinishReason,
    GenerateReqInput,
    OperationName,
    Stream,
    TokenLogprob,
)
from vidette.errors import UsageError, unsupported_field
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
from vidette.service.fields import FIELD_BYTES, Fields, Neutral
from vidette.service.prompts import read_prompts_up_to
from vidette.service.usage import Usage, UsageTold

Prompts = list[str] | list[list[int]]
"""One or several, as texts or as token ids."""


class CompletionRequest(Asked, frozen=True, kw_only=True):
    """Honoured fields of the body.

    Args:
        prompt: a text, token ids, or a list of either.
        max_tokens: most output tokens.
        echo: put the prompt in front of each answer.
        logprobs: how many of the most probable tokens to report in the place of each; absent: no log
            probabilities.
        best_of: as `n`, if at all: no more answers are made than are given.
    """

    prompt: Raw
    max_tokens: int = 16
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None


REFUSED: Final = MappingProxyType[str, Neutral]({"suffix": ("",), **SGLANG_REFUSED})
"""Not supported yet, each with the values that ask for nothing (null always does)."""
LATER: Final = MappingProxyType[str, Neutral](
    {"response_format": ({"type": "text"},), "json_schema": (), **CONSTRAINTS_LATER}
)
"""Likewise; structured output."""
BODY: Final = Fields(
    CompletionRequest,
    REFUSED,
    readers={"stream_options": read_stream_options},
    later=LATER,
    field_bytes=FIELD_BYTES,
)


class CompletionReader:
    """Reads bodies.

    Args:
        max_total_tokens: no prompt of more tokens could be served.
    """

    def __init__(self, max_total_tokens: int) -> None:
        self._most = max_total_tokens
        self._read_prompts = read_prompts_up_to(max_total_tokens)

    def read(self, body: bytes) -> tuple[CompletionRequest, Prompts]:
        """Return what a body asks for, and its prompts.

        Raises:
            UsageError: it cannot be honoured; with the field at fault.
        """
        request = BODY.decode(body)
        check_stream_options(request)
        if request.best_of is not None and request.best_of != request.n:
            raise unsupported_field("best_of", (request.n,))
        prompts: Prompts = self._read_prompts(bytes(request.prompt), "prompt")
        for prompt in prompts:
            if not isinstance(prompt, str) and len(prompt) > self._most:
                raise UsageError(
                    f"a list of prompt has {len(prompt)} token ids; at most {self._most} of prompt and "
                    f"output together fit",
                    param="prompt",
                    code="context_length_exceeded",
                )
        return request, prompts


def to_complete(request: CompletionRequest, prompts: Prompts, rid: str) -> GenerateReqInput:
    """Return the request as the engine takes it.

    Args:
        request: as it was read.
        prompts: what it is about; with one there is no list.
        rid: its name.
    """
    told: Any = prompts[0] if len(prompts) == 1 else prompts
    texts = isinstance(prompts[0], str)
    return GenerateReqInput(
        rid=rid,
        text=told if texts else None,
        input_ids=None if texts else told,
        stream=request.stream,
        return_logprob=request.logprobs is not None,
        logprob_start_len=0 if request.echo and request.logprobs is not None else -1,
        top_logprobs_num=request.logprobs or 0,
        priority=request.priority,
        extra_key=request.extra_key,
        cache_salt=request.cache_salt,
        sampling_params=sampling_of(request, request.max_tokens),
    )


def in_words_of_completions(error: UsageError, request: CompletionRequest) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used."""
    names = {**NAMES, "top_logprobs_num": "logprobs"}
    if request.logprobs is not None:
        names["return_logprob"] = "logprobs"
    return in_words_of(error, "prompt", names)


class Echoes:
    """Prompts as texts, each made when it is first asked for: by then the engine has taken them.

    Args:
        prompts: as they were read.
        engine: knows the tokens.
    """

    def __init__(self, prompts: Prompts, engine: Engine) -> None:
        self._prompts = prompts
        self._engine = engine
        self._texts: dict[int, str] = {}

    def of(self, place: int) -> str:
        """Return a prompt; token ids with the names of special ones, but for one it begins with."""
        prompt = self._prompts[place]
        if isinstance(prompt, str):
            return prompt
        if place not in self._texts:
            first = 1 if prompt and prompt[0] == self._engine.info.bos_token_id else 0
            self._texts[place] = self._engine.detokenize(prompt[first:], skip_special_tokens=False)
        return self._texts[place]


class CompletionLogprobs(Struct, frozen=True):
    """Of each token of an answer, or of those that a chunk adds to it.

    Args:
        text_offset: where in the text of the answer each begins.
        token_logprobs: its log probability; null for the first token of a prompt.
        tokens: the tokens.
        top_logprobs: those that were most probable in its place, and itself.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Struct, frozen=True):
    """One answer, or what a chunk adds to it; `matched_stop` as in chat."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    matched_stop: int | str | UnsetType | None = UNSET


class CompletionAnswer(Struct, frozen=True):
    """An answer, or a chunk of one; `usage` as in chat."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    object: str = "text_completion"


class CompletionShape:
    """Answers in the shape of this API.

    Args:
        name: `id` of the answer, and of all chunks of it.
        model: the name the model is served under.
        engine: knows the tokens.
        request: what was asked for.
        echoes: the prompts, if they are wanted.
    """

    operation: ClassVar[OperationName] = "text_completion"

    def __init__(
        self,
        name: str,
        model: str,
        *,
        engine: Engine,
        request: CompletionRequest,
        echoes: Echoes | None,
    ) -> None:
        self._id = name
        self._model = model
        self._engine = engine
        self._request = request
        self._echoes = echoes
        self._usage = UsageTold(request.stream_options, request.n)
        self._created = int(time.time())
        self._listed: dict[int, LogprobsInLists] = {}

    def whole(self, streams: Sequence[Stream]) -> CompletionAnswer:
        """Return the answer of requests that were read to their ends."""
        choices = []
        for index, stream in enumerate(streams):
            done = stream.completion()
            choices.append(self._choice(index, stream, done.text, done.logprobs, done.finish_reason))
        return self._answer(*choices, usage=self._usage.of(streams))

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Iterator[CompletionAnswer]:
        """Yield the chunk that a delta makes; a token that completes no character makes none by itself."""
        self._usage.note(index, stream)
        choice = self._choice(index, stream, delta.text, delta.logprobs, delta.finish_reason)
        if choice.text or choice.logprobs is not None or choice.finish_reason is not None:
            yield self._answer(choice, usage=self._usage.in_chunk())

    def ending(self, streams: Sequence[Stream]) -> Iterator[CompletionAnswer]:
        """Yield the usage, if it was asked for."""
        if (usage := self._usage.at_end(streams)) is not None:
            yield self._answer(usage=usage)

    def _answer(self, *choices: CompletionChoice, usage: Usage | UnsetType | None) -> CompletionAnswer:
        return CompletionAnswer(self._id, self._created, self._model, choices, usage)

    def _choice(
        self,
        index: int,
        stream: Stream,
        text: str,
        logprobs: Sequence[TokenLogprob],
        reason: FinishReason | None,
    ) -> CompletionChoice:
        """Return what is new of an answer."""
        first = index not in self._listed
        prompt = ""
        if first:
            if self._echoes is not None:
                prompt = self._echoes.of(index // self._request.n)
            self._listed[index] = LogprobsInLists(self._engine, self._request)
        listed: CompletionLogprobs | None = None
        if self._request.logprobs is not None:
            listed = self._listed[index].of(logprobs, stream.prompt_logprobs if first else None, prompt)
        return CompletionChoice(
            index,
            prompt + text if first else text,
            listed if listed is None or listed.tokens else None,
            None if reason is None else reason.type,
            UNSET if reason is None else reason.matched,
        )


class LogprobsInLists:
    """The log probabilities of one answer, and where in its text each token begins.

    Args:
        engine: knows the tokens.
        request: whose.
    """

    def __init__(self, engine: Engine, request: CompletionRequest) -> None:
        self._engine = engine
        self._echo = request.echo
        self._text = engine.new_text(begins=False, skip_special_tokens=request.skip_special_tokens)
        self._offset = 0

    def of(
        self, output: Iterable[TokenLogprob], prompt: Sequence[TokenLogprob] | None, text: str
    ) -> CompletionLogprobs:
        """Return those of the next tokens.

        Args:
            output: of the output.
            prompt: of the prompt, in front of them; None: there are none.
            text: of the prompt.
        """
        lists = CompletionLogprobs([], [], [], [])
        if self._echo and prompt:
            self._add_prompt(lists, prompt, text)
        for one in output:
            self._add(lists, one, self._text.push([one.token_id], last=False))
        return lists

    def _add_prompt(self, lists: CompletionLogprobs, prompt: Sequence[TokenLogprob], text: str) -> None:
        shown = self._engine.new_text(skip_special_tokens=False)
        bos = self._engine.info.bos_token_id
        for place, one in enumerate(prompt):
            # What the tokenizer puts in front of a text is not in it.
            hidden = (
                place == 0
                and bos is not None
                and one.token_id == bos
                and not text.startswith(self._named(bos))
            )
            self._add(lists, one, "" if hidden else shown.push([one.token_id], last=False))
        self._offset = len(text)

    def _add(self, lists: CompletionLogprobs, one: TokenLogprob, added: str) -> None:
        """Append a token, and what it has added to the text."""
        name = self._named(one.token_id)
        # With it may come what is left of a character before it, which it shows to be torn.
        lists.text_offset.append(self._offset + (len(added) - len(name) if added.endswith(name) else 0))
        self._offset += len(added)
        lists.token_logprobs.append(one.logprob)
        lists.tokens.append(name)
        top = {self._named(token_id): value for token_id, value in one.top}
        lists.top_logprobs.append(None if one.logprob is None else {**top, name: one.logprob})

    def _named(self, token_id: int) -> str:
        raw = self._engine.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
