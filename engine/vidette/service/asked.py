"""What requests of all OpenAI's APIs have in common, and as what the engine is asked for it.

The names and meanings are OpenAI's, and SGLang's for its own additions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from vidette import SamplingParams
from vidette.errors import UsageError
from vidette.service.fields import Fields, Neutral


class StreamOptions(Struct, frozen=True):
    """Honoured fields of `stream_options`.

    Args:
        include_usage: send a last chunk with the usage.
        continuous_usage_stats: send the usage so far with every chunk.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampled(Struct, frozen=True, kw_only=True):
    """Honoured fields of every body.

    Args:
        model: the name the model is served under; absent: that one.
        stream: answer in events.
        min_tokens: `min_new_tokens` of SamplingParams.
        seed: `sampling_seed` there.
        priority, extra_key, cache_salt: as in GenerateReqInput.
        user, safety_identifier, prompt_cache_key: labels, on which nothing in an answer depends.

    The others are as in SamplingParams.
    """

    model: str | None = None
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Asked(Sampled, frozen=True, kw_only=True):
    """Honoured fields of the bodies of OpenAI's older APIs.

    Args:
        stream_options: allowed with `stream` only.
        n: how many answers to each prompt.
        rid: the caller's name for the request, which is also the id of the answer.
    """

    stream_options: StreamOptions | None = None
    n: int = 1
    rid: str | None = None


STREAM_OPTIONS_REFUSED: Final = MappingProxyType[str, Neutral]({"include_obfuscation": (False,)})
SGLANG_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "custom_logit_processor": (),
        "custom_params": ({},),
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
"""SGLang's additions that are not supported yet, each with the values that ask for nothing."""
CONSTRAINTS_LATER: Final = MappingProxyType[str, Neutral]({"regex": (), "ebnf": ()})
"""SGLang's ways to say what an output has to be."""

STREAM_OPTIONS: Final = Fields(StreamOptions, STREAM_OPTIONS_REFUSED)
read_stream_options = STREAM_OPTIONS.decode


def check_stream_options(request: Asked) -> None:
    """Check that options of a stream come with one.

    Raises:
        UsageError: they do not.
    """
    if request.stream_options is not None and not request.stream:
        raise UsageError("stream_options is only allowed with stream: true", param="stream_options")


def sampling_of(request: Sampled, max_new_tokens: int | None) -> SamplingParams:
    """Return how the engine is asked to sample, for one answer.

    Args:
        request: as it was read.
        max_new_tokens: most output tokens; None: as many as fit.
    """
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        sampling_seed=request.seed,
        n=request.n if isinstance(request, Asked) else 1,
        stop=request.stop,
        stop_regex=request.stop_regex,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        min_new_tokens=request.min_tokens,
        no_stop_trim=request.no_stop_trim,
        skip_special_tokens=request.skip_special_tokens,
    )


NAMES: Final = MappingProxyType(
    {
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "sampling_seed": "seed",
        "top_logprobs_num": "top_logprobs",
    }
)
"""What callers of OpenAI's APIs call what the engine calls otherwise."""
PROMPTS: Final = re.compile(r"^(?:text|input_ids)\b")


def in_words_of(error: UsageError, prompt: str, names: Mapping[str, str] = NAMES) -> UsageError:
    """Return what the engine found wrong, with the names that the caller used.

    Args:
        error: in the engine's words.
        prompt: the field that the prompt came in, or was made of.
        names: of the other fields; they are whole words, alone or in a path such as "stop[3]".
    """
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")

    def renamed(text: str) -> str:
        return words.sub(lambda word: names[word[0]], PROMPTS.sub(prompt, text))

    param = None if error.param is None else renamed(error.param)
    return UsageError(renamed(str(error)), param=param, code=error.code)
