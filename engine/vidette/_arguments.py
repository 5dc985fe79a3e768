"""What callers give to the library, as the types that are meant, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Final, Literal, get_args

import msgspec

from vidette.config import EngineConfig, check_config
from vidette.errors import UsageError
from vidette_protocol.messages import GenerateReqInput, SamplingParams

OperationName = Literal["text_completion", "chat"]
"""What a request is to a trace, by the names of the semantic conventions for generative AI."""
PROBE_PRIORITY: Final = 16
"""Priority of a request that only tells whether tokens are made: the highest that the scheduler knows."""


def check_deadline(deadline_s: float | None) -> None:
    """Check a deadline.

    Raises:
        UsageError: it is no number of seconds.
    """
    if deadline_s is not None and not 0 <= deadline_s < math.inf:  # NaN neither
        raise UsageError(
            f"deadline_s is {deadline_s}; it must be 0 seconds or more, and finite", param="deadline_s"
        )


def check_operation(operation: OperationName) -> OperationName:
    """Return the name of an operation.

    Raises:
        UsageError: there is none of that name.
    """
    names = get_args(OperationName)
    if operation not in names:
        raise UsageError(
            f"operation is {operation!r}; it must be one of {', '.join(names)}", param="operation"
        )
    return operation


def to_config(model: str | EngineConfig | None, options: Mapping[str, object]) -> EngineConfig:
    """Return the configuration that is meant by a model and options.

    Raises:
        UsageError: an option is not known or out of range.
    """
    if isinstance(model, EngineConfig):
        if options:
            raise UsageError(f"a whole configuration holds {', '.join(options)} itself; give it there")
        return check_config(model)
    given = dict(options) if model is None else {"model": model, **options}
    try:
        config = msgspec.convert(given, EngineConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{error}; the options are {', '.join(EngineConfig.__struct_fields__)}") from error
    return check_config(config)


def to_request(
    prompt: str | Sequence[int] | GenerateReqInput,
    sampling_params: SamplingParams | Mapping[str, object] | None,
    rid: str | None,
) -> GenerateReqInput:
    """Return the request that is meant by a prompt and what goes with it.

    Raises:
        UsageError: they are of the wrong types, or do not go together.
    """
    if isinstance(prompt, GenerateReqInput):
        if sampling_params is not None or rid is not None:
            raise UsageError("a whole request holds its own sampling_params and rid; give them there")
        return prompt
    try:
        params = (
            sampling_params
            if isinstance(sampling_params, SamplingParams)
            else msgspec.convert(sampling_params or {}, SamplingParams)
        )
    except msgspec.ValidationError as error:
        names = ", ".join(SamplingParams.__struct_fields__)
        raise UsageError(
            f"sampling_params: {error}; the names are {names}", param="sampling_params"
        ) from error
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise UsageError(f"the prompt is {type(prompt).__name__}; give a str or token ids", param="text")
    if isinstance(prompt, str):
        return GenerateReqInput(rid=rid, text=prompt, sampling_params=params)
    try:
        ids = msgspec.convert([i if isinstance(i, bool) else index(i) for i in prompt], list[int])
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(
            f"a prompt is a text or a sequence of token ids: {error}", param="input_ids"
        ) from error
    return GenerateReqInput(rid=rid, input_ids=ids, sampling_params=params)


def probe_request() -> GenerateReqInput:
    """Return a request for one token, which only tells whether tokens are made."""
    params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    return GenerateReqInput(input_ids=[0], sampling_params=params, priority=PROBE_PRIORITY, log_metrics=False)
