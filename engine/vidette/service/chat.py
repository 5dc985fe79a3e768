"""The body of `POST /v1/chat/completions`: what of it is honoured, and as what.

`HONOURED` is done as OpenAI says, or as SGLang says for its own additions. Everything in `REFUSED` is
answered with a 400, unless it asks for nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec import Raw, Struct

from vidette import GenerateReqInput, SamplingParams
from vidette.errors import UsageError
from vidette.service.errors import shown
from vidette.service.fields import Fields, Neutral, reader_of
from vidette.service.limits import ServiceLimits


class StreamOptions(Struct, frozen=True):
    """Honoured fields of `stream_options`.

    Args:
        include_usage: send a last chunk with the usage.
        continuous_usage_stats: send the usage so far with every chunk.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(Struct, frozen=True):
    """Honoured fields of a message.

    Args:
        role: "system", "developer" (another name for it), "user" or "assistant".
        content: a text, or a list of text parts, which are put together with nothing between them.
    """

    role: str
    content: Raw


class Part(Struct, frozen=True):
    """Honoured fields of a part of a message."""

    type: str
    text: str | None = None


class ChatRequest(Struct, frozen=True):
    """Honoured fields of the body.

    Args:
        messages: the conversation.
        model: the name the model is served under; absent: that one.
        stream: answer in chunks.
        stream_options: allowed with `stream` only.
        max_tokens: most output tokens; absent: as many as the context has room for.
        max_completion_tokens: the newer name of max_tokens.
        min_tokens: `min_new_tokens` of SamplingParams.
        seed: `sampling_seed` there.
        logprobs: report the log probability of each output token.
        top_logprobs: how many of the most probable tokens to report in its place; with `logprobs` only.
        rid: the caller's name for the request, which is also the id of the answer.
        priority, extra_key, cache_salt: as in GenerateReqInput.
        user, safety_identifier, prompt_cache_key: labels, on which nothing in an answer depends.

    The others are as in SamplingParams.
    """

    messages: Raw
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    top_logprobs: int | None = None
    rid: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


REFUSED: Final = MappingProxyType[str, Neutral](
    {
        # OpenAI's
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),  # without tools both mean none
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
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
        # SGLang's
        "regex": (),
        "ebnf": (),
        "continue_final_message": (False,),
        "separate_reasoning": (True,),
        "stream_reasoning": (True,),
        "chat_template_kwargs": ({},),
        "custom_logit_processor": (),
        "custom_params": ({},),
        "input_ids": (),
        "lora_path": (),
        "session_params": ({},),
        "bootstrap_host": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
        "routed_dp_rank": (),
        "return_hidden_states": (False,),
        "return_routed_experts": (False,),
        "return_cached_tokens_details": (False,),
        "return_prompt_token_ids": (False,),
        "return_meta_info": (False,),
    }
)
"""Not supported yet, each with the values that ask for nothing (null always does)."""

MESSAGE_REFUSED: Final = MappingProxyType[str, Neutral](
    # Clients send answers back with all of their fields.
    {
        "name": (),
        "tool_calls": ([],),
        "tool_call_id": (),
        "function_call": (),
        "refusal": (),
        "audio": (),
        "annotations": ([],),
        "reasoning_content": ("",),
    }
)
STREAM_OPTIONS_REFUSED: Final = MappingProxyType[str, Neutral]({"include_obfuscation": (False,)})
PART_REFUSED: Final = MappingProxyType[str, Neutral](
    {"image_url": (), "video_url": (), "audio_url": (), "input_audio": (), "file": (), "refusal": ()}
)
ROLES: Final = MappingProxyType(
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
)
LATER_ROLES: Final = frozenset({"tool", "function"})

_BODY = Fields(
    ChatRequest,
    REFUSED,
    readers={"stream_options": Fields(StreamOptions, STREAM_OPTIONS_REFUSED).decode},
)
_MESSAGE = Fields(Message, MESSAGE_REFUSED)
_PART = Fields(Part, PART_REFUSED)
_read_text = reader_of(str)


def read_chat(body: bytes, limits: ServiceLimits) -> tuple[ChatRequest, list[dict[str, str]]]:
    """Return what a body asks for, and its conversation as a template takes it.

    Raises:
        UsageError: it cannot be honoured; with the field at fault.
    """
    request = _BODY.decode(body)
    if request.stream_options is not None and not request.stream:
        raise UsageError("stream_options is only allowed with stream: true", param="stream_options")
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise UsageError(
            f"max_tokens is {old} and max_completion_tokens, its newer name, is {new}; give one of them",
            param="max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise UsageError("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
    messages = _MESSAGE.decode_many(bytes(request.messages), "messages", limits.messages)
    if not messages:
        raise UsageError("messages is empty; a conversation has at least one message", param="messages")
    conversation, parts_left = [], limits.parts
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        content, parts = _read_content(bytes(message.content), f"{where}.content", parts_left)
        parts_left -= parts
        conversation.append({"role": _read_role(message.role, f"{where}.role"), "content": content})
    return request, conversation


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
        sampling_params=SamplingParams(
            max_new_tokens=most,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            repetition_penalty=request.repetition_penalty,
            logit_bias=request.logit_bias,
            sampling_seed=request.seed,
            n=request.n,
            stop=request.stop,
            stop_regex=request.stop_regex,
            stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos,
            min_new_tokens=request.min_tokens,
            no_stop_trim=request.no_stop_trim,
            skip_special_tokens=request.skip_special_tokens,
        ),
    )


def in_words_of_chat(error: UsageError, request: ChatRequest) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used."""
    names = {
        "max_new_tokens": "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens",
        "min_new_tokens": "min_tokens",
        "sampling_seed": "seed",
        "top_logprobs_num": "top_logprobs",
    }
    message = str(error)
    for ours, theirs in names.items():
        message = message.replace(ours, theirs)
    param = "messages" if error.param == "text" else names.get(error.param or "", error.param)
    return UsageError(message, param=param, code=error.code)


def _read_role(role: str, where: str) -> str:
    if role in LATER_ROLES:
        raise UsageError(f"{where} is {role!r}, which is not supported yet", param=where)
    if role not in ROLES:
        raise UsageError(f"{where} is {shown(role)}; it must be one of {', '.join(ROLES)}", param=where)
    return ROLES[role]


def _read_content(raw: bytes, where: str, most: int) -> tuple[str, int]:
    """Return the text of a message and how many parts it came in; at most so many are accepted."""
    if not raw.startswith(b"["):
        return _read_text(raw, where), 0
    parts = _PART.decode_many(raw, where, most)
    return "".join(_read_part(part, f"{where}[{place}]") for place, part in enumerate(parts)), len(parts)


def _read_part(part: Part, where: str) -> str:
    if part.type != "text":
        raise UsageError(
            f"{where}: a part of type {shown(part.type)} is not supported yet; only text is",
            param=f"{where}.type",
        )
    if part.text is None:
        raise UsageError(f"{where} has no text", param=f"{where}.text")
    return part.text
