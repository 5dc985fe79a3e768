"""`meta_info` of `/generate`: what is known of a request besides its text, under SGLang's names.

The events of a stream each hold all of the output so far; of the parts that grow with it, only what is new is
written anew.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from vidette import FinishReason, Stream, TokenLogprob
from vidette_protocol.messages import SpeculativeMetrics

Triple = tuple[float | None, int, str | None]
"""A log probability, whose it is, and the text of that if it was asked for."""

_encode: Final = msgspec.json.Encoder().encode


class Listed:
    """A JSON list that grows."""

    __slots__ = ("_said", "count")

    def __init__(self) -> None:
        self._said = bytearray()
        self.count = 0

    def add(self, value: object) -> None:
        """Append a value."""
        self._said += b"," + _encode(value)
        self.count += 1

    def raw(self) -> Raw:
        """Return the list as it is now."""
        return Raw(b"[%b]" % bytes(self._said[1:]))


class LogprobsInJSON:
    """The log probabilities of one answer: `[logprob, token_id, text]` for each token.

    Args:
        text_of: returns the text of a token; None: texts were not asked for.
        flat: give the most probable tokens of the prompt as two flat lists.
        packed: give these as base64 of float32 and int32.
    """

    def __init__(
        self, text_of: Callable[[int], str] | None = None, *, flat: bool = False, packed: bool = False
    ) -> None:
        self._text_of = text_of
        self._flat = flat
        self._packed = packed
        self._tokens, self._tops, self._asked = Listed(), Listed(), Listed()
        self._prompt: dict[str, Any] | None = None

    def add(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Take those of the next output tokens."""
        for one in logprobs:
            self._tokens.add(self._triple(one.token_id, one.logprob))
            self._tops.add(self._ranked(one, one.top))
            self._asked.add(self._ranked(one, one.asked))

    def fields(self, stream: Stream) -> dict[str, Any]:
        """Return all there are so far, as fields of `meta_info`; none if none were asked for."""
        wanted = stream.logprobs_asked
        if wanted is None:
            return {}
        if self._prompt is None and stream.prompt_logprobs is not None:
            self._prompt = self._fields_of_prompt(
                stream.prompt_logprobs, top=wanted.top, asked=bool(wanted.token_ids)
            )
        prompt = self._prompt
        if prompt is None:
            prompt = self._fields_of_prompt((), top=wanted.top, asked=bool(wanted.token_ids))
        fields = {
            **prompt,
            "output_token_logprobs": self._tokens.raw(),
            "output_token_logprobs_length": self._tokens.count,
        }
        if wanted.top:
            fields["output_top_logprobs"] = self._tops.raw()
        if wanted.token_ids:
            fields["output_token_ids_logprobs"] = self._asked.raw()
        return fields

    def _fields_of_prompt(
        self, logprobs: tuple[TokenLogprob, ...], *, top: int, asked: bool
    ) -> dict[str, Any]:
        tokens, tops, ids = Listed(), Listed(), Listed()
        for one in logprobs:
            tokens.add(self._triple(one.token_id, one.logprob))
            tops.add(self._ranked(one, one.top))
            ids.add(self._ranked(one, one.asked))
        fields: dict[str, Any] = {"input_token_logprobs": tokens.raw()}
        if top:
            flat = self._flattened(logprobs, top) if self._flat else None
            fields.update({"input_top_logprobs": tops.raw()} if flat is None else flat)
        if asked:
            fields["input_token_ids_logprobs"] = ids.raw()
        return fields

    def _flattened(self, logprobs: tuple[TokenLogprob, ...], top: int) -> dict[str, Any] | None:
        """Return the most probable tokens as flat lists; None if one in the midst of them has none."""
        start = next((place for place, one in enumerate(logprobs) if one.logprob is not None), len(logprobs))
        rows = logprobs[start:]
        if any(one.logprob is None for one in rows):
            return None
        ids = array("i", [token_id for one in rows for token_id, _ in one.top])
        values = array("f", [value for one in rows for _, value in one.top])
        fields: dict[str, Any] = {
            "input_top_logprobs_shape": (len(rows), len(rows[0].top) if rows else top),
            "input_top_logprobs_null_prefix": start,
        }
        if not self._packed:
            fields["input_top_logprobs_val_flat"] = values.tolist()
            fields["input_top_logprobs_idx_flat"] = ids.tolist()
            return fields
        fields["input_top_logprobs_val_flat_b64"] = b64encode(values.tobytes()).decode()
        fields["input_top_logprobs_idx_flat_b64"] = b64encode(ids.tobytes()).decode()
        fields["input_top_logprobs_val_flat_b64_dtype"] = "float32"
        fields["input_top_logprobs_idx_flat_b64_dtype"] = "int32"
        return fields

    def _triple(self, token_id: int, logprob: float | None) -> Triple:
        return (logprob, token_id, None if self._text_of is None else self._text_of(token_id))

    def _ranked(self, one: TokenLogprob, ranked: tuple[tuple[int, float], ...]) -> list[Triple] | None:
        if one.logprob is None:
            return None
        return [self._triple(token_id, value) for token_id, value in ranked]


def meta_info(
    stream: Stream, reason: FinishReason | None, logprobs: LogprobsInJSON, seconds: float
) -> dict[str, Any]:
    """Return what is known of a request now.

    Always there are `id` (its rid), `finish_reason` (null while it goes on), `prompt_tokens`,
    `completion_tokens` (so far), `cached_tokens` (of the prompt, that were not computed again),
    `num_retractions` (how often its memory was taken for others) and `resumed` (how often it went on after
    the death of a process). With its end come `e2e_latency` and `queue_time`, and `spec_...` if it was
    speculated on.

    Args:
        stream: of the request.
        reason: how it ended; None: it goes on.
        logprobs: all that came so far.
        seconds: since its arrival.
    """
    served = stream.served
    fields: dict[str, Any] = {
        "id": stream.rid,
        "finish_reason": None if reason is None else _reason_fields(reason),
        "prompt_tokens": stream.prompt_tokens,
        "completion_tokens": stream.completion_tokens,
        "cached_tokens": served.cached_tokens,
    }
    if served.cached_tokens:
        host = served.cached_host_tokens
        fields["cached_tokens_details"] = {"device": served.cached_tokens - host, "host": host}
    fields["num_retractions"] = served.retractions
    fields["resumed"] = stream.resumed
    fields.update(logprobs.fields(stream))
    if reason is not None:
        fields["e2e_latency"] = seconds
        fields["queue_time"] = served.queue_s
        if stream.spec is not None:
            fields.update(_spec_fields(stream.spec))
    return fields


def _reason_fields(reason: FinishReason) -> dict[str, Any]:
    match reason.type:
        case "stop":
            return {"type": "stop", "matched": reason.matched}
        case "length":
            return {"type": "length", "length": reason.length}
        case _:
            return {
                "type": reason.type,
                "message": reason.message,
                "status_code": reason.status_code,
                "err_type": reason.err_type,
            }


def _spec_fields(spec: SpeculativeMetrics) -> dict[str, Any]:
    """Return how speculation went, each number under both of its names.

    The accepted length is that of a verification: the drafts that were right, and the token that always is.
    The rate is how many of the drafts were right.
    """
    right, verified = spec.spec_num_correct_drafts, spec.spec_verify_ct
    fields: dict[str, Any] = {
        "spec_num_drafts": spec.spec_num_drafts,
        "spec_verify_ct": verified,
        "spec_num_correct_drafts": right,
        "spec_accepted_drafts": right,
        "spec_correct_drafts_histogram": spec.spec_correct_drafts_histogram,
        "spec_accept_histogram": spec.spec_correct_drafts_histogram,
    }
    if verified:
        fields["spec_accept_length"] = 1 + right / verified
    if spec.spec_num_drafts:
        fields["spec_accept_rate"] = right / spec.spec_num_drafts
    return fields
