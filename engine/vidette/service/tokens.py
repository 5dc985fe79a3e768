"""`POST /tokenize` and `POST /detokenize`: what prompts are made of.

The bodies are those that SGLang and vLLM take, the answers what both of them give: of `/tokenize` the fields
`tokens`, `count` and `max_model_len`, with vLLM's `token_strs` if asked for; of `/detokenize` the text as
`text`, which is SGLang's name for it, and as `prompt`, which is vLLM's. Lists of prompts, and of lists of
tokens, are SGLang's; conversations are vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from vidette import Engine
from vidette.errors import UsageError
from vidette.service.asked import in_words_of
from vidette.service.chat import read_messages
from vidette.service.fields import Fields, Neutral, reader_of
from vidette.service.limits import ServiceLimits
from vidette.service.openai import OpenAI
from vidette.service.prompts import LIMITS, read_ids_up_to
from vidette.service.responses import Exchange


class TokenizeRequest(Struct, frozen=True):
    """Honoured fields of the body of `/tokenize`.

    Args:
        prompt: a text, or a list of them.
        messages: a conversation in its place, which becomes the prompt that a chat would be.
        model: the name the model is served under.
        add_special_tokens: whether the tokenizer puts what it always puts before a prompt; of a conversation
            the template says it.
        return_token_strs: say what each token stands for.
    """

    prompt: Raw | None = None
    messages: Raw | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(Struct, frozen=True):
    """Honoured fields of the body of `/detokenize`.

    Args:
        tokens: token ids, or a list of lists of them.
        model: the name the model is served under.
        skip_special_tokens: leave special tokens out.
    """

    tokens: Raw
    model: str | None = None
    skip_special_tokens: bool = True


class TokenizeAnswer(Struct, frozen=True):
    """Tokens of a prompt, or of each; and how many fit with their output."""

    tokens: Sequence[int | Sequence[int]]
    count: int | list[int]
    max_model_len: int
    token_strs: Sequence[str | Sequence[str]] | UnsetType | None = UNSET


class DetokenizeAnswer(Struct, frozen=True):
    """The text of tokens, or of each list of them."""

    text: str | list[str]
    prompt: str | list[str]


REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    }
)
"""Not supported yet, each with the values that ask for nothing (null always does)."""
LATER: Final = MappingProxyType[str, Neutral]({"tools": ([],)})

TOKENIZE: Final = Fields(TokenizeRequest, REFUSED, later=LATER)
DETOKENIZE: Final = Fields(DetokenizeRequest, {})

_read_text, _read_texts = reader_of(str), reader_of(list[str])


class Tokens:
    """The endpoints of one engine.

    Args:
        engine: knows the tokens.
        limits: bounds of the service.
        openai: knows which model is served.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, openai: OpenAI) -> None:
        self._engine = engine
        self._limits = limits
        self._openai = openai
        self._read_ids = read_ids_up_to(engine.max_total_tokens)

    async def tokenize(self, exchange: Exchange) -> None:
        """Answer `POST /tokenize`."""
        request = TOKENIZE.decode(exchange.take_body())
        self._openai.check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise UsageError("give either prompt or messages", param="prompt")
        if request.messages is not None and request.add_special_tokens:
            raise UsageError(
                "add_special_tokens is true, but a conversation has those that its template says",
                param="add_special_tokens",
            )
        texts, listed = await self._read_prompts(request)
        bare = request.messages is None and request.add_special_tokens is False
        field, most = "prompt" if request.messages is None else "messages", self._engine.max_total_tokens
        rows: list[list[int]] = []
        count = 0
        for text in texts:
            try:
                ids = await self._engine.tokenize(text)
            except UsageError as error:
                raise in_words_of(error, field) from error
            rows.append(ids[1:] if bare and ids[:1] == [self._engine.info.bos_token_id] else ids)
            count += len(rows[-1])
            if count > most:
                raise UsageError(
                    f"{field} has {count} tokens{' or more' if listed else ''}; at most {most} are answered"
                    f"{', of all texts' if listed else ''}",
                    param=field,
                )
        strs = [list(map(self._str_of, ids)) for ids in rows] if request.return_token_strs else None
        answer = TokenizeAnswer(
            rows if listed else rows[0],
            [len(ids) for ids in rows] if listed else len(rows[0]),
            most,
            UNSET if strs is None else strs if listed else strs[0],
        )
        await exchange.send_json(answer)

    async def _read_prompts(self, request: TokenizeRequest) -> tuple[list[str], bool]:
        """Return the texts of a request, and whether they came as a list."""
        if request.messages is not None:
            messages = read_messages(bytes(request.messages), self._limits)
            return [await self._engine.render_chat(messages)], False
        raw = bytes(request.prompt or b"")
        if not raw.startswith(b"["):
            return [_read_text(raw, "prompt")], False
        texts: list[str] = _read_texts(raw, "prompt")
        if len(texts) > LIMITS.answers:
            raise UsageError(
                f"prompt has {len(texts)} texts; at most {LIMITS.answers} are accepted", param="prompt"
            )
        return texts, True

    def _str_of(self, token_id: int) -> str:
        return self._engine.token_bytes(token_id).decode(errors="replace")

    async def detokenize(self, exchange: Exchange) -> None:
        """Answer `POST /detokenize`."""
        request = DETOKENIZE.decode(exchange.take_body())
        self._openai.check_model(request.model)
        raw = bytes(request.tokens)
        if (count := raw.count(b",") + 1) > (most := self._engine.max_total_tokens):
            raise UsageError(
                f"tokens has {count} token ids; at most {most} are accepted, in all lists", param="tokens"
            )
        rows: Any = self._read_ids(raw, "tokens")
        listed = bool(rows) and isinstance(rows[0], list)
        try:
            texts = [
                self._engine.detokenize(ids, skip_special_tokens=request.skip_special_tokens)
                for ids in (rows if listed else [rows])
            ]
        except UsageError as error:
            raise UsageError(f"tokens is not all tokens: {error}", param="tokens") from error
        text = texts if listed else texts[0]
        await exchange.send_json(DetokenizeAnswer(text, text))
