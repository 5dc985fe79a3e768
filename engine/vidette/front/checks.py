"""What makes a request acceptable: pure functions that raise `UsageError` or return what will be sent."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sized

import msgspec
import numpy as np
from numpy.typing import NDArray

from vidette.errors import UsageError
from vidette_protocol.limits import Limits
from vidette_protocol.messages import GenerateReqInput, SamplingParams, check_sampling
from vidette_protocol.messages.sampling import MAX_SEED


def check_request(request: GenerateReqInput, limits: Limits, max_total_tokens: int) -> GenerateReqInput:
    """Check everything that can be told before tokenising; return the request, its types made sure of.

    What is proportional to the request's size comes last.

    Args:
        request: as it came; whoever builds one in Python may have put anything into it.
        limits: bounds of the protocol.
        max_total_tokens: most tokens of prompt and output together.

    Raises:
        UsageError: with the field and the value at fault.
    """
    ids = request.input_ids
    if isinstance(ids, Sized) and len(ids) >= max_total_tokens:
        raise _prompt_too_long(len(ids), max_total_tokens, "input_ids")
    if isinstance(request.text, str) and len(request.text) > limits.text_chars:
        raise UsageError(
            f"text has {len(request.text)} characters; at most {limits.text_chars} are accepted",
            param="text",
            code="context_length_exceeded",
        )
    request = _typed(request)
    if request.rid is not None and not 0 < len(request.rid) <= limits.rid_chars:
        raise UsageError(
            f"rid has {len(request.rid)} characters; it must have 1 to {limits.rid_chars}", param="rid"
        )
    for name, value in (("rid", request.rid), ("text", request.text)):
        if value is not None:
            _check_characters(name, value)
    if (request.text is None) == (request.input_ids is None):
        given = "both are" if request.text is not None else "neither is"
        raise UsageError(f"{given} given of text and input_ids; give just one", param="text")
    if request.text == "":
        raise UsageError("text is empty; a prompt has at least one token", param="text")
    fault = check_sampling(request.sampling_params, limits)
    if fault is not None:
        raise UsageError(fault, param=fault.split(" ", 1)[0])
    return request


def _typed(request: GenerateReqInput) -> GenerateReqInput:
    fields = msgspec.structs.asdict(request)
    if isinstance(request.sampling_params, SamplingParams):
        fields["sampling_params"] = msgspec.structs.asdict(request.sampling_params)
    try:
        return msgspec.convert(fields, GenerateReqInput)
    except msgspec.ValidationError as error:
        problem, _, inside = str(error).partition(" - at `$.")
        path = inside.removesuffix("`") or "the request"
        raise UsageError(
            f"{path} is not valid: {problem[:1].lower()}{problem[1:]}", param=path.rpartition(".")[2]
        ) from error


def _prompt_too_long(prompt_tokens: int, max_total_tokens: int, param: str) -> UsageError:
    return UsageError(
        f"the prompt has {prompt_tokens} tokens; at most {max_total_tokens - 1} fit",
        param=param,
        code="context_length_exceeded",
    )


def _check_characters(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} has {value[error.start]!r} at {error.start}, half a surrogate pair",
            param=name,
        ) from error


def check_ids(ids: list[int], vocab_size: int) -> NDArray[np.int32]:
    """Return token ids that a caller gave, packed.

    Raises:
        UsageError: there are none, or one is outside the vocabulary.
    """
    if not ids:
        raise UsageError("input_ids is empty; a prompt has at least one token", param="input_ids")
    try:
        packed = np.array(ids, dtype=np.int64)
    except OverflowError:
        packed = None
    if packed is None or packed.min() < 0 or packed.max() >= vocab_size:
        place, value = next((i, value) for i, value in enumerate(ids) if not 0 <= value < vocab_size)
        raise UsageError(
            f"input_ids[{place}] is {value!r}; token ids of this model are 0 to {vocab_size - 1}",
            param="input_ids",
        )
    return packed.astype(np.int32)


def settle_sampling(
    params: SamplingParams,
    prompt_tokens: int,
    max_total_tokens: int,
    draw: Callable[[int], int] = secrets.randbelow,
) -> SamplingParams:
    """Return sampling parameters with nothing left open: `max_new_tokens` and `sampling_seed` are set.

    Args:
        params: as the caller gave them, checked.
        prompt_tokens: length of the prompt.
        max_total_tokens: most tokens of prompt and output together.
        draw: returns a random number below its argument, for a request without a seed.

    Raises:
        UsageError: the prompt, or the prompt and what is to be generated, does not fit.
    """
    room = max_total_tokens - prompt_tokens
    if room < 1:
        raise _prompt_too_long(prompt_tokens, max_total_tokens, "text")
    wanted = params.max_new_tokens
    if wanted is not None and wanted > room:
        raise UsageError(
            f"the prompt has {prompt_tokens} tokens and max_new_tokens is {wanted}, together "
            f"{prompt_tokens + wanted}; at most {max_total_tokens} fit: ask for at most {room}",
            param="max_new_tokens",
            code="context_length_exceeded",
        )
    seed = params.sampling_seed
    return msgspec.structs.replace(
        params,
        max_new_tokens=room if wanted is None else wanted,
        sampling_seed=draw(MAX_SEED + 1) if seed is None else seed,
    )
