"""What makes a request acceptable: pure functions that raise `UsageError` or return what will be sent."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from vidette.errors import UsageError
from vidette.front.support import check_fields, check_supported
from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits, logprob_bytes_at
from vidette_protocol.messages import GenerateItem, GenerateReqInput, SamplingParams
from vidette_protocol.messages.sampling import MAX_SEED
from vidette_protocol.normalise import Normalised, normalise_generate


def make_rid() -> str:
    """Return a rid for a request that was given none."""
    return uuid.uuid4().hex


def check_request(
    request: GenerateReqInput, *, new_rid: Callable[[], str], limits: Limits, vocab_size: int
) -> GenerateItem:
    """Check everything that can be told before tokenising; return the one answer that is to be made.

    Args:
        request: as it came; whoever builds one in Python may have put anything into it.
        new_rid: makes a rid for a request that has none.
        limits: bounds; `prompt_tokens` is what fits into the context.
        vocab_size: token ids are below it. `check_ids` looks at those of the prompt.

    Raises:
        UsageError: with the field and the value at fault.
    """
    return check_supported(_normalise(request, new_rid, limits, vocab_size))


def check_group_request(
    request: GenerateReqInput, *, new_rid: Callable[[], str], limits: Limits, vocab_size: int
) -> Normalised[GenerateItem]:
    """Check everything that can be told before tokenising; return the answers that are to be made.

    Args:
        request: as for `check_request`, which has the other arguments as well.

    Raises:
        UsageError: with the field and the value at fault.
    """
    normalised = _normalise(request, new_rid, limits, vocab_size)
    for item in normalised.items:
        check_fields(item)
    return normalised


def _normalise(
    request: GenerateReqInput, new_rid: Callable[[], str], limits: Limits, vocab_size: int
) -> Normalised[GenerateItem]:
    try:
        return normalise_generate(request, new_rid=new_rid, limits=limits, vocab_size=vocab_size)
    except InvalidInput as error:
        raise UsageError(str(error), param=error.param, code=error.code) from error


def check_fits(fewest: int, max_total_tokens: int) -> None:
    """Check that a text may fit, as far as is known before it is tokenised.

    Args:
        fewest: it has not fewer tokens.
        max_total_tokens: most tokens of prompt and output together.

    Raises:
        UsageError: it does not fit, however it is tokenised.
    """
    if fewest >= max_total_tokens:
        raise _prompt_too_long(f"at least {fewest}", max_total_tokens)


def _prompt_too_long(prompt_tokens: int | str, max_total_tokens: int) -> UsageError:
    # Clients know it by "prompt is too long", not by the code.
    return UsageError(
        f"the prompt is too long: it has {prompt_tokens} tokens; at most {max_total_tokens - 1} fit",
        param="text",
        code="context_length_exceeded",
    )


def check_ids(ids: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    """Return token ids that a caller gave, at least one, packed.

    Raises:
        UsageError: one is outside the vocabulary.
    """
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


def check_known(params: SamplingParams, unknown: frozenset[str]) -> None:
    """Check that an older scheduler knows every parameter that asks for something.

    Args:
        params: checked.
        unknown: fields that it does not know; usually none.

    Raises:
        UsageError: it does not know one; it would take the message for a broken one.
    """
    if not unknown:
        return
    values, defaults = msgspec.structs.asdict(params), msgspec.structs.asdict(SamplingParams())
    for name in SamplingParams.__struct_fields__:
        if name in unknown and values[name] != defaults[name]:
            raise UsageError(
                f"{name} is not known to the scheduler, which is of an older version",
                param=name,
                code="unsupported_field",
            )


def settle(
    item: GenerateItem, prompt_tokens: int, max_total_tokens: int, logprob_bytes: int
) -> SamplingParams:
    """Return a request's sampling parameters with nothing left open, once all of it was found to fit.

    Args:
        item: checked.
        prompt_tokens: length of the prompt.
        max_total_tokens: most tokens of prompt and output together.
        logprob_bytes: most that its log probabilities may take.

    Raises:
        UsageError: it does not fit.
    """
    params = settle_sampling(item.sampling_params, prompt_tokens, max_total_tokens)
    if item.return_logprob:
        asked, start = len(item.token_ids_logprob or ()), item.logprob_start_len
        told = min(asked, 1) if start < 0 else max(0, prompt_tokens - start)
        each = logprob_bytes_at(item.top_logprobs_num, asked)
        total = (told + (params.max_new_tokens or 0)) * each
        if total > logprob_bytes:
            raise UsageError(
                f"return_logprob is about {told} tokens of the prompt and up to {params.max_new_tokens} of "
                f"the output, {each} bytes each and {total} together; at most {logprob_bytes} are reported: "
                f"lower max_new_tokens or top_logprobs_num, or ask for less of the prompt or fewer ids",
                param="return_logprob",
            )
    return params


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
        raise _prompt_too_long(prompt_tokens, max_total_tokens)
    wanted = params.max_new_tokens
    if wanted is not None and wanted > room:
        raise UsageError(
            f"the prompt has {prompt_tokens} tokens and max_new_tokens is {wanted}, together "
            f"{prompt_tokens + wanted}; at most {max_total_tokens} fit: ask for at most {room}",
            param="max_new_tokens",
            code="context_length_exceeded",
        )
    most = room if wanted is None else wanted
    if params.min_new_tokens > most:
        raise UsageError(
            f"min_new_tokens is {params.min_new_tokens}, but there is room for {most} behind the prompt",
            param="min_new_tokens",
            code="context_length_exceeded",
        )
    seed = params.sampling_seed
    return msgspec.structs.replace(
        params,
        max_new_tokens=most,
        sampling_seed=draw(MAX_SEED + 1) if seed is None else seed,
    )
