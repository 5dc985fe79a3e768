"""`SamplingParams`: how the next token is chosen, and when to stop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntFlag
from itertools import chain
from math import isfinite
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from vidette_protocol.limits import Limits
from vidette_protocol.patterns import Pattern, PatternError, PatternSizeError
from vidette_protocol.values import MAX_INT32, count_fault, ids_fault, shown, surrogate_fault, text_fault

T = TypeVar("T")

GREEDY_BELOW: Final = 1e-6
"""A temperature below this means greedy (as in SGLang)."""
MAX_SEED: Final = (1 << 63) - 1
MAX_BIAS: Final = 100.0
"""Largest value of `logit_bias`, either way."""
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 64) - 1
"""What an integer of `custom_params` may be: what msgpack has."""


class TextMode(IntFlag):
    """How tokens become text, where not in the usual way; a sum of these."""

    SPECIAL = 1
    """Special tokens are shown."""
    SPACED = 2
    """Spaces are put around them."""
    BEGINNING = 4
    """The prompt shows nothing, so a text begins here; a space at its beginning is the tokenizer's."""


ALL_MODES: Final = int(TextMode.SPECIAL | TextMode.SPACED | TextMode.BEGINNING)
"""All of them together: the largest mode."""


class SamplingParams(Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the next token is chosen, and when to stop.

    On the wire it is a map of the fields that differ from their defaults, so that a field this side does
    not know is refused instead of silently not honoured. Bounds are those of `limits.Limits`.

    Args:
        max_new_tokens: most output tokens; 0 to Limits.max_new_tokens. None: as many as the context has room
            for.
        temperature: >= 0 and finite; below 1e-6 the most probable token is taken (greedy).
        top_p: in (0, 1]; sample from the smallest set of tokens whose probabilities sum to at least this.
        top_k: -1 (all) or >= 1; sample from the k most probable tokens.
        ignore_eos: go on after an end-of-sequence token and after `stop_token_ids`, until `max_new_tokens`.
        sampling_seed: 0 to 2**63 - 1. A draw depends on the seed and the position in the output alone, so the
            same seed gives the same text whatever else is in the batch. None: the front draws a seed.
        min_new_tokens: fewest output tokens before an end is possible; 0 to `max_new_tokens`.
        stop: text that ends the output where it appears; one or several, none empty. It is left out, and no
            beginning of it is shown before.
        stop_token_ids: tokens that end the output.
        stop_regex: patterns that end the output once one matches; one or several. After each token they are
            searched for in the output so far, as by `re.search`. What matched stays in the text.
        min_p: in [0, 1]; leave out tokens less probable than this share of the most probable one.
        frequency_penalty: in [-2, 2]; taken off a token's logit for each time it was put out.
        presence_penalty: in [-2, 2]; taken off the logit of every token that was put out.
        repetition_penalty: in (0, 2]; divides positive logits of tokens seen, multiplies negative ones.
        logit_bias: token id to what is added to its logit, -100 to 100.
        n: how many answers to one prompt.
        json_schema: a JSON schema, as text, that the output obeys. At most one of this, `regex`, `ebnf` and
            `structural_tag` is given.
        regex: a pattern that the whole output matches.
        ebnf: a grammar that the output obeys.
        structural_tag: tags and the schema of what is between them, as text.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: put a space around them, where they are not left out and the model's
            tokenizer does so; those that we read do not.
        no_stop_trim: leave what matched `stop` or `stop_token_ids` in the text.
        custom_params: values for a custom logit processor, by name: scalars, lists of scalars, or flat maps
            of scalars.
        stream_interval: tokens between two deltas of a stream, >= 1. None: the engine's default.
    """

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    sampling_seed: int | None = None
    min_new_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    custom_params: dict[str, Any] | None = None
    stream_interval: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def check_sampling(
    params: SamplingParams,
    limits: Limits = Limits(),  # noqa: B008  immutable
    vocab_size: int | None = None,
) -> str | None:
    """Return what is wrong with sampling parameters in a sentence, or None if they can be honoured.

    The sentence begins with the path of the field. The struct itself does not check on construction, so that
    a decoded one costs nothing twice; types are taken for granted here.

    Args:
        params: each field of its type.
        limits: bounds on what may be asked for.
        vocab_size: token ids are below it; None: it is not known here.
    """
    return (
        _fault_of_numbers(params, limits)
        or _fault_of_ends(params, limits, vocab_size)
        or _fault_of_constraints(params, limits)
        or (None if params.logit_bias is None else _fault_of_bias(params.logit_bias, limits, vocab_size))
        or (None if params.custom_params is None else _fault_of_custom(params.custom_params, limits))
    )


def normalise_sampling(params: SamplingParams) -> SamplingParams:
    """Return the one way of writing sampling parameters; what they ask for stays the same.

    `stop` and `stop_regex` become lists, no list holds a value twice or is empty, no map is empty, and a
    temperature that means greedy becomes 0. (SGLang writes greedy as temperature 1 and `top_k` 1.) Parameters
    that are written so already are returned themselves; else lists and maps that need not change are shared.
    """
    cold = 0 < params.temperature < GREEDY_BELOW
    if not cold and not _has_parts(params):
        return params
    written = msgspec.structs.replace(
        params,
        temperature=0.0 if cold else params.temperature,
        stop=_each_once(_as_list(params.stop)),
        stop_token_ids=_each_once(params.stop_token_ids),
        stop_regex=_each_once(_as_list(params.stop_regex)),
        logit_bias=params.logit_bias or None,
        custom_params=params.custom_params or None,
    )
    return params if written == params else written


def own_sampling(params: SamplingParams) -> SamplingParams:
    """Return parameters that share no list and no map with these."""
    if not _has_parts(params):
        return params
    return msgspec.structs.replace(
        params,
        stop=_copy(params.stop),
        stop_token_ids=_copy(params.stop_token_ids),
        stop_regex=_copy(params.stop_regex),
        logit_bias=_copy(params.logit_bias),
        custom_params=params.custom_params
        and {name: _copy(value) for name, value in params.custom_params.items()},
    )


# --- faults ----------------------------------------------------------------------------


def _fault_of_numbers(params: SamplingParams, limits: Limits) -> str | None:
    most = params.max_new_tokens
    if most is not None and not 0 <= most <= limits.max_new_tokens:
        return f"max_new_tokens is {shown(most)}; it must be from 0 to {limits.max_new_tokens}"
    least = params.min_new_tokens
    if least and not 0 <= least <= (limits.max_new_tokens if most is None else most):
        end = limits.max_new_tokens if most is None else f"max_new_tokens, which is {most}"
        return f"min_new_tokens is {shown(least)}; it must be from 0 to {end}"
    if not (params.temperature >= 0 and isfinite(params.temperature)):
        return f"temperature is {shown(params.temperature)}; it must be a finite number, 0 (greedy) or more"
    if not 0 < params.top_p <= 1:
        return f"top_p is {shown(params.top_p)}; it must be greater than 0 and at most 1"
    if params.top_k != -1 and not 1 <= params.top_k <= MAX_SEED:
        return f"top_k is {shown(params.top_k)}; it must be -1 (all tokens) or at least 1"
    if not 0 <= params.min_p <= 1:
        return f"min_p is {shown(params.min_p)}; it must be from 0 to 1"
    if not -2 <= params.frequency_penalty <= 2:
        return f"frequency_penalty is {shown(params.frequency_penalty)}; it must be from -2 to 2"
    if not -2 <= params.presence_penalty <= 2:
        return f"presence_penalty is {shown(params.presence_penalty)}; it must be from -2 to 2"
    if not 0 < params.repetition_penalty <= 2:
        given = shown(params.repetition_penalty)
        return f"repetition_penalty is {given}; it must be greater than 0 and at most 2"
    if not 1 <= params.n <= limits.n:
        return f"n is {shown(params.n)}; it must be from 1 to {limits.n}"
    seed = params.sampling_seed
    if seed is not None and not 0 <= seed <= MAX_SEED:
        return f"sampling_seed is {shown(seed)}; it must be from 0 to {MAX_SEED}"
    interval = params.stream_interval
    if interval is not None and not 1 <= interval <= limits.max_new_tokens:
        return f"stream_interval is {shown(interval)}; it must be from 1 to {limits.max_new_tokens}"
    return None


def _fault_of_ends(params: SamplingParams, limits: Limits, vocab_size: int | None) -> str | None:
    if params.stop is not None:
        stops = _as_list(params.stop)
        if fault := count_fault(len(stops), limits.stops):
            return f"stop {fault}"
        for place, stop in enumerate(stops):
            if fault := text_fault(stop, limits.stop_chars):
                return f"{_path('stop', params.stop, place)} {fault}"
    if params.stop_token_ids is not None:
        if fault := count_fault(len(params.stop_token_ids), limits.stop_token_ids):
            return f"stop_token_ids {fault}"
        if fault := ids_fault(params.stop_token_ids, vocab_size):
            return f"stop_token_ids{fault}"
    if params.stop_regex is not None:
        patterns = _as_list(params.stop_regex)
        if fault := count_fault(len(patterns), limits.stop_regexes):
            return f"stop_regex {fault}"
        if fault := regex_budget_fault(patterns, limits):
            return f"stop_regex {fault}"
        states = limits.stop_regex_states
        for place, pattern in enumerate(patterns):
            if pattern in patterns[:place]:
                continue
            compiled = _compile(pattern, limits, states)
            if isinstance(compiled, str):
                return f"{_path('stop_regex', params.stop_regex, place)} {compiled}"
            states -= compiled.size
    return None


def regex_budget_fault(patterns: Iterable[str], limits: Limits) -> str | None:
    """Return what is wrong with patterns that would take too long to compile; none is looked at."""
    chars = sum(map(len, set(patterns)))
    if chars > limits.stop_regex_chars:
        return f"has {chars} characters altogether; at most {limits.stop_regex_chars} are accepted"
    return None


def _compile(pattern: str, limits: Limits, states: int) -> Pattern | str:
    """Return a pattern ready to be searched for, or what is wrong with it."""
    if fault := text_fault(pattern, limits.stop_regex_chars):
        return fault
    try:
        return Pattern(pattern, states)
    except PatternSizeError:
        most = limits.stop_regex_states
        return f"is {shown(pattern)}, which is too large; all patterns together may have {most} states"
    except PatternError as error:
        return f"is {shown(pattern)}, which {error}"
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is {shown(pattern)}, which is not a regular expression: {error}"


def _fault_of_constraints(params: SamplingParams, limits: Limits) -> str | None:
    for name, text in _constraints(params):
        if fault := constraint_fault(name, text, limits):
            return fault
    return exclusion_fault(params)


def constraint_fault(name: str, text: str, limits: Limits) -> str | None:
    """Return what is wrong with a constraint by itself, in a whole sentence.

    Args:
        name: its field in SamplingParams.
        text: what it says.
        limits: bounds on it.
    """
    if fault := text_fault(text, limits.constraint_chars):
        return f"{name} {fault}"
    if name in {"json_schema", "structural_tag"}:
        return _fault_of_json(name, text, limits.constraint_depth)
    return None


def exclusion_fault(params: SamplingParams) -> str | None:
    """Return what is wrong with constraints that are each fine, in a whole sentence."""
    given = [name for name, _ in _constraints(params)]
    if len(given) < 2:
        return None
    return f"{given[0]} and {given[1]} are both given; an output has one constraint at most"


def _constraints(params: SamplingParams) -> Iterator[tuple[str, str]]:
    if params.json_schema is not None:
        yield "json_schema", params.json_schema
    if params.regex is not None:
        yield "regex", params.regex
    if params.ebnf is not None:
        yield "ebnf", params.ebnf
    if params.structural_tag is not None:
        yield "structural_tag", params.structural_tag


def _fault_of_json(name: str, text: str, most: int) -> str | None:
    too_deep = f"{name} is nested deeper than {most}"
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        return too_deep
    except msgspec.DecodeError as error:
        return f"{name} is {shown(text)}, which is not JSON: {error}"
    if not isinstance(value, dict):
        return f"{name} is {shown(text)}; it must be a JSON object"
    level: list[dict[str, Any] | list[Any]] = [value]
    for _ in range(most):
        level = [child for each in level for child in _children(each)]
    return too_deep if level else None


def _children(value: dict[str, Any] | list[Any]) -> Iterator[dict[str, Any] | list[Any]]:
    """Yield what in a JSON value holds values itself."""
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, dict | list):
            yield child


def _fault_of_bias(bias: dict[int, float], limits: Limits, vocab_size: int | None) -> str | None:
    if fault := count_fault(len(bias), limits.logit_bias):
        return f"logit_bias {fault}"
    most = MAX_INT32 if vocab_size is None else vocab_size - 1
    for token, value in bias.items():
        if not 0 <= token <= most:
            return f"logit_bias has the token {shown(token)}; token ids are 0 to {most}"
        if not -MAX_BIAS <= value <= MAX_BIAS:
            return f"logit_bias of {token} is {shown(value)}; it must be from {-MAX_BIAS:g} to {MAX_BIAS:g}"
    return None


def _fault_of_custom(values: dict[str, Any], limits: Limits) -> str | None:
    size = 0
    for name, value in values.items():
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            return f"custom_params of {shown(name)} has a key that is no text"
        for part in chain((name,), _parts(value)):
            size += 1 + (len(part) if isinstance(part, str) else 0)
            if size > limits.custom_params:
                return f"custom_params has more than {limits.custom_params} keys, values and characters"
            if fault := _fault_of_scalar(part):
                return f"custom_params of {shown(name)} {fault}"
    return None


def _parts(value: object) -> Iterable[object]:
    """Return what a value of `custom_params` is made of; it is fine if all of it is scalars."""
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list) else (value,)


def _fault_of_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return surrogate_fault(value)
    if value is None or type(value) is bool:
        return None
    if type(value) is int and _MIN_INTEGER <= value <= _MAX_INTEGER:
        return None
    if type(value) is float and isfinite(value):
        return None
    return f"holds {shown(value)}; a value is a scalar, a list of scalars, or a map from text to scalars"


# --- small parts ---------------------------------------------------------------------------


def _has_parts(params: SamplingParams) -> bool:
    """Whether any list or map is given."""
    return (
        params.stop is not None
        or params.stop_token_ids is not None
        or params.stop_regex is not None
        or params.logit_bias is not None
        or params.custom_params is not None
    )


def _as_list(value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _path(name: str, value: str | list[str], place: int) -> str:
    return name if isinstance(value, str) else f"{name}[{place}]"


def _each_once(values: list[T] | None) -> list[T] | None:
    return list(dict.fromkeys(values)) if values else None


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value
