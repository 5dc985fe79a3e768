"""Which fields of a request the scheduler honours; what it does not is refused, never ignored.

Fronts refuse the same before they send it (`vidette.front.support`), in better words. This is for a front of
another version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from vidette.scheduler.logprobs import Wanted
from vidette.scheduler.turns import SessionRefused
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import FinishReason, SamplingParams, TokenizedGenerateReqInput

HONOURED: Final = frozenset(
    {"vid", "floor", "rid", "input_ids", "input_text", "sampling_params", "stream"}
    | {"return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"}
    | {"deadline_s", "resumed_output_ids", "priority", "extra_key", "cache_salt", "routing_key"}
    | {"session_params", "timed"}
)
"""Fields of TokenizedGenerateReqInput."""

SAMPLING_HONOURED: Final = frozenset(
    {"max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "sampling_seed", "n"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"}
    | {"stop", "stop_token_ids", "stop_regex", "ignore_eos", "no_stop_trim", "stream_interval"}
    | {"skip_special_tokens", "spaces_between_special_tokens"}
)
"""Fields of SamplingParams; `n` is 1 by then."""


def find_unsupported(request: TokenizedGenerateReqInput) -> str | None:
    """Return in a sentence what a request asks for that is not supported, or None."""
    names = [
        *_asked(request, TokenizedGenerateReqInput, HONOURED),
        *_asked(request.sampling_params, SamplingParams, SAMPLING_HONOURED),
    ]
    return f"this scheduler does not support {', '.join(names)}" if names else None


def _asked(struct: Struct, cls: type[Struct], honoured: frozenset[str]) -> Iterator[str]:
    """Yield the fields that are not honoured and have another value than their default."""
    defaults = dict(zip(reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__), strict=False))
    for name, value in msgspec.structs.asdict(struct).items():
        # By identity first: against a default of None any value asks for something, and arrays have no
        # plain equality.
        usual = defaults.get(name)
        if name not in honoured and value is not usual and (usual is None or value != usual):
            yield name


def explain(error: ValueError) -> FinishReason:
    """Return how a request ends that cannot be served."""
    status = error.status if isinstance(error, SessionRefused) else 400
    return FinishReason("error", message=str(error), status_code=status)


def check_ids(request: TokenizedGenerateReqInput, vocab_size: int) -> None:
    """Check the token ids of a request, which its front has checked.

    Raises:
        RemoteProtocolError: one is not of the vocabulary.
    """
    for name, column in (("token ids", request.token_ids), ("output ids", request.resumed_ids)):
        ids = np.frombuffer(column, dtype=np.int32)
        if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
            raise RemoteProtocolError(
                f"vid {request.vid} has {name} from {ids.min()} to {ids.max()}; "
                f"those of the vocabulary are 0 to {vocab_size - 1}"
            )


def check_request(
    request: TokenizedGenerateReqInput, resumed: int, vocab_size: int, max_total_tokens: int
) -> Wanted | None:
    """Return which log probabilities a request wants, if it can be served.

    Args:
        request: as it came.
        resumed: how many tokens of its output were made before.
        vocab_size: of the model.
        max_total_tokens: most tokens of prompt and output together.

    Raises:
        ValueError: it asks for what is not supported, or for too much.
    """
    unsupported = find_unsupported(request)
    if unsupported is not None:
        raise ValueError(unsupported)
    wanted = Wanted.of(request, vocab_size)
    biased = request.sampling_params.logit_bias
    if biased and not 0 <= max(biased) < vocab_size:
        raise ValueError(f"logit_bias has {max(biased)}; token ids are 0 to {vocab_size - 1}")
    new_tokens = request.sampling_params.max_new_tokens
    assert new_tokens is not None, "decoding has checked that the front set it"
    total = len(request.token_ids) + new_tokens
    if total > max_total_tokens and (new_tokens > resumed or wanted is not None):
        raise ValueError(f"prompt and max_new_tokens are {total} tokens; at most {max_total_tokens} fit")
    return wanted
