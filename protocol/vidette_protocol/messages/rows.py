"""Rows: one request's share of a step, before it is packed into columns and after it was unpacked."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vidette_protocol.messages.logprobs import SpeculativeMetrics, TokenLogprobs


class FinishReason(Struct, array_like=True, frozen=True):
    """How a request ended.

    Args:
        type: "stop" (the model ended it), "length" (`max_new_tokens` reached), "abort" (its caller did, and
            this is the acknowledgement), "error" (this request failed alone).
        matched: with "stop", what ended it: a token id, or the stop string or pattern; None: a grammar.
        length: the bound that was reached, with "length".
        message: a sentence, with "abort" and "error".
        status_code: with "abort" and "error", the HTTP status that says the same.
        err_type: with "abort" and "error", a word for programs.
    """

    type: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class Served(Struct, array_like=True, frozen=True):
    """How a request was served, beside its output.

    Args:
        cached_tokens: tokens of its prompt that were found in the prefix cache when it was begun.
        cached_host_tokens: those of them that came back from the second tier.
        retractions: how often its blocks were taken for others.
        queue_s: seconds it waited to be begun.
        begun_at: when it was begun, by the machine's monotonic clock; 0: it did not ask for times.
        made_at: likewise, when the detokenizer had the last tokens of this row.
    """

    cached_tokens: int = 0
    cached_host_tokens: int = 0
    retractions: int = 0
    queue_s: float = 0.0
    begun_at: float = 0.0
    made_at: float = 0.0


class TokenRow(Struct, frozen=True):
    """One request's share of a step, before it is packed.

    Args:
        vid: whose.
        offset: position of the first of these tokens in the request's output.
        token_ids: new output tokens; may be empty on a finish.
        reason: set once, on the last row of a vid.
        logprobs: log probabilities, if the request asked for some.
        spec: how speculation went, if there is any.
        decoded_text: text that the scheduler decided on before these tokens.
        held: bytes at the end of the text so far, these tokens included, that are not shown: not yet, as a
            stop string may be beginning there; on the last row for good, as it is what is cut off.
        mode: how the tokens become text, a TextMode; on the first row of a vid, for all of them.
        served: how it was served; on the first row, and on the last if something has changed since.
    """

    vid: int
    offset: int
    token_ids: tuple[int, ...] = ()
    reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    spec: SpeculativeMetrics | None = None
    decoded_text: str = ""
    held: int = 0
    mode: int = 0
    served: Served | None = None


class StrRow(Struct, frozen=True):
    """One request's text out of a step, before it is packed: a TokenRow and the text that comes of it."""

    vid: int
    offset: int
    token_ids: tuple[int, ...] = ()
    reason: FinishReason | None = None
    text: str = ""
    logprobs: TokenLogprobs | None = None
    spec: SpeculativeMetrics | None = None
    served: Served | None = None
