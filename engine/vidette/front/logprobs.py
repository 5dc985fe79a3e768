"""`Logprobs`: the log probabilities of one request, as they come, packed until somebody looks."""

from __future__ import annotations

from array import array
from math import isnan
from typing import NamedTuple

from msgspec import Struct

from vidette_protocol.messages import TokenLogprobs
from vidette_protocol.messages.columns import view_i32

Ranked = tuple[tuple[int, float], ...]
"""Token ids with their log probabilities."""


class LogprobsAsked(Struct, frozen=True):
    """What a request wants to know of each token.

    Args:
        top: how many of the most probable tokens in its place.
        token_ids: tokens whose log probabilities in its place are wanted.
    """

    top: int = 0
    token_ids: tuple[int, ...] = ()


class TokenLogprob(Struct, frozen=True):
    """How probable a token was in its place.

    Args:
        token_id: the token.
        logprob: its log probability; None of the first token of a prompt.
        top: the most probable tokens in its place, the most probable first, as many as were asked for.
        asked: the tokens of `token_ids_logprob`, in their order.
    """

    token_id: int
    logprob: float | None
    top: Ranked = ()
    asked: Ranked = ()


class _Columns(NamedTuple):
    """Of places, one behind the other."""

    values: array[float]
    top_values: array[float]
    top_ids: array[int]
    asked: array[float]

    @classmethod
    def empty(cls) -> _Columns:
        return cls(array("f"), array("f"), array("i"), array("f"))


class Logprobs:
    """What is known of one request's tokens.

    Attributes:
        prompt: of the tokens of its prompt that were asked for; None: of none, or it is not known yet.
    """

    __slots__ = ("_asked", "_output", "_top", "prompt")

    def __init__(self) -> None:
        self.prompt: tuple[TokenLogprob, ...] | None = None
        self._output = _Columns.empty()
        self._top = 0
        self._asked: tuple[int, ...] = ()

    def add(self, told: TokenLogprobs, new_tokens: int) -> None:
        """Take what a row says.

        Args:
            told: what it says.
            new_tokens: how many of its tokens, from the last, were not heard before.
        """
        self._top = told.top_logprobs_num
        if told.token_ids_logprob is not None:
            self._asked = tuple(view_i32(told.token_ids_logprob))
        if self.prompt is None and told.input_token_logprobs_val is not None:
            self.prompt = self._read_prompt(told)
        if new_tokens:
            columns = self._output
            _extend(columns.values, told.output_token_logprobs_val, new_tokens)
            _extend(columns.top_values, told.output_top_logprobs_val, new_tokens * self._top)
            _extend(columns.top_ids, told.output_top_logprobs_idx, new_tokens * self._top)
            _extend(columns.asked, told.output_token_ids_logprobs_val, new_tokens * len(self._asked))

    def output(self, token_ids: tuple[int, ...], start: int) -> tuple[TokenLogprob, ...]:
        """Return those of output tokens.

        Args:
            token_ids: of the output.
            start: position of the first of these tokens in it.
        """
        return tuple(self._at(self._output, start + place, token) for place, token in enumerate(token_ids))

    def __len__(self) -> int:
        """Return of how many output tokens they are known."""
        return len(self._output.values)

    def _read_prompt(self, told: TokenLogprobs) -> tuple[TokenLogprob, ...]:
        columns = _Columns.empty()
        assert told.input_token_logprobs_val is not None
        tokens = () if told.input_token_logprobs_idx is None else view_i32(told.input_token_logprobs_idx)
        count = len(tokens)
        _extend(columns.values, told.input_token_logprobs_val, count)
        _extend(columns.top_values, told.input_top_logprobs_val, count * self._top)
        _extend(columns.top_ids, told.input_top_logprobs_idx, count * self._top)
        _extend(columns.asked, told.input_token_ids_logprobs_val, count * len(self._asked))
        return tuple(self._at(columns, place, token) for place, token in enumerate(tokens))

    def _at(self, columns: _Columns, place: int, token: int) -> TokenLogprob:
        value = columns.values[place]
        if isnan(value):
            return TokenLogprob(token, None)
        ranked = slice(place * self._top, (place + 1) * self._top)
        width = len(self._asked)
        asked = columns.asked[place * width : (place + 1) * width]
        return TokenLogprob(
            token,
            value,
            tuple(zip(columns.top_ids[ranked], columns.top_values[ranked], strict=True)),
            tuple(zip(self._asked, asked, strict=True)) if asked else (),
        )


def _extend(column: array[int] | array[float], raw: memoryview | None, count: int) -> None:
    """Append the last so many numbers of a packed column, if there is one."""
    if raw is not None and count:
        column.frombytes(raw.cast("B")[-4 * count :])
