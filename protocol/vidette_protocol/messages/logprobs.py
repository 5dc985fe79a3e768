"""What a row says beside its tokens: log probabilities, and how speculation went."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from vidette_protocol.messages.base import BaseBatchReq
from vidette_protocol.messages.columns import view_f32, view_i32

T = TypeVar("T")
N = TypeVar("N", int, float)

Floats = list[float]
Ints = list[int]


class TokenLogprobs(Struct, array_like=True, kw_only=True, frozen=True):
    """Log probabilities of one row; what was not asked for is None. Packed float32, or int32 for ids.

    Those of the output are of the row's new tokens; those of the prompt come once, with the first row. With
    several at a position, those of one position lie together. A token without a probability, such as the
    first of a prompt, has NaN.

    Args:
        output_token_logprobs_val: of each new token.
        output_top_logprobs_val: of the most probable tokens in its place.
        output_top_logprobs_idx: their ids.
        output_token_ids_logprobs_val: of the tokens in `token_ids_logprob` in its place.
        input_token_logprobs_val: of each token of the prompt from `logprob_start_len` on; so the others.
        input_top_logprobs_val: see there.
        input_top_logprobs_idx: see there.
        input_token_ids_logprobs_val: see there.
        input_token_logprobs_idx: the tokens of the prompt themselves.
        token_ids_logprob: the ids that were asked for.
        top_logprobs_num: how many of the most probable there are at each position.
    """

    output_token_logprobs_val: memoryview | None = None
    output_top_logprobs_val: memoryview | None = None
    output_top_logprobs_idx: memoryview | None = None
    output_token_ids_logprobs_val: memoryview | None = None
    input_token_logprobs_val: memoryview | None = None
    input_top_logprobs_val: memoryview | None = None
    input_top_logprobs_idx: memoryview | None = None
    input_token_ids_logprobs_val: memoryview | None = None
    input_token_logprobs_idx: memoryview | None = None
    token_ids_logprob: memoryview | None = None
    top_logprobs_num: int = 0

    def check(self, new_tokens: int) -> str | None:
        """Return in a sentence where the columns contradict each other, or None if they agree.

        Args:
            new_tokens: how many tokens the row has.
        """
        asked = _count(self.token_ids_logprob)
        prompt = _count(self.input_token_logprobs_val)
        if self.top_logprobs_num < 0:
            return f"top_logprobs_num is {self.top_logprobs_num}"
        for name, column, expected in (
            ("output_token_logprobs_val", self.output_token_logprobs_val, new_tokens),
            ("output_top_logprobs_val", self.output_top_logprobs_val, new_tokens * self.top_logprobs_num),
            ("output_top_logprobs_idx", self.output_top_logprobs_idx, new_tokens * self.top_logprobs_num),
            ("output_token_ids_logprobs_val", self.output_token_ids_logprobs_val, new_tokens * asked),
            ("input_token_logprobs_val", self.input_token_logprobs_val, prompt),
            ("input_token_logprobs_idx", self.input_token_logprobs_idx, prompt),
            ("input_top_logprobs_val", self.input_top_logprobs_val, prompt * self.top_logprobs_num),
            ("input_top_logprobs_idx", self.input_top_logprobs_idx, prompt * self.top_logprobs_num),
            ("input_token_ids_logprobs_val", self.input_token_ids_logprobs_val, prompt * asked),
            ("token_ids_logprob", self.token_ids_logprob, asked),
        ):
            if column is not None and column.nbytes != 4 * expected:
                return f"{name} has {column.nbytes} bytes, not {expected} numbers of 4"
        return None


class SpeculativeMetrics(Struct, array_like=True, frozen=True):
    """How speculation went for one request, up to and including this row.

    Args:
        spec_verify_ct: how often drafts were verified.
        spec_num_correct_drafts: how many draft tokens were right.
        spec_correct_drafts_histogram: how often a verification found 0, 1, 2, ... of them right.
        spec_num_drafts: how many draft tokens were verified.
    """

    spec_verify_ct: int = 0
    spec_num_correct_drafts: int = 0
    spec_correct_drafts_histogram: tuple[int, ...] = ()
    spec_num_drafts: int = 0


class SpeculativeDecodingMetricsMixin(BaseBatchReq, kw_only=True, frozen=True):
    """What a step message says of speculation: the documented names, over the column of the message."""

    @property
    def spec(self) -> list[SpeculativeMetrics | None]:
        """Metrics of each row, or None."""
        raise NotImplementedError

    @property
    def spec_verify_ct(self) -> list[int]:
        """How often drafts of each row were verified."""
        return [0 if row is None else row.spec_verify_ct for row in self.spec]

    @property
    def spec_num_correct_drafts(self) -> list[int]:
        """How many draft tokens of each row were right."""
        return [0 if row is None else row.spec_num_correct_drafts for row in self.spec]

    @property
    def spec_accepted_tokens(self) -> list[int]:
        """The former name of `spec_num_correct_drafts`."""
        return self.spec_num_correct_drafts

    @property
    def spec_correct_drafts_histogram(self) -> list[list[int]]:
        """How often a verification of each row found 0, 1, 2, ... draft tokens right."""
        return [[] if row is None else list(row.spec_correct_drafts_histogram) for row in self.spec]

    @property
    def spec_acceptance_histogram(self) -> list[list[int]]:
        """The former name of `spec_correct_drafts_histogram`."""
        return self.spec_correct_drafts_histogram


class LogprobsMixin(BaseBatchReq, kw_only=True, frozen=True):
    """What a step message says of log probabilities: the documented names, an item a row, None if none."""

    @property
    def logprobs(self) -> list[TokenLogprobs | None]:
        """Log probabilities of each row."""
        raise NotImplementedError

    @property
    def output_ids(self) -> list[memoryview]:
        """New output tokens of each row."""
        raise NotImplementedError

    @property
    def output_token_logprobs_val(self) -> list[Floats | None]:
        """Of each new token."""
        return self._floats(lambda row: row.output_token_logprobs_val)

    @property
    def output_token_logprobs_idx(self) -> list[Ints | None]:
        """The new tokens of the rows that asked for log probabilities."""
        return [
            None if row is None or row.output_token_logprobs_val is None else ids.tolist()
            for row, ids in zip(self.logprobs, self.output_ids, strict=True)
        ]

    @property
    def output_top_logprobs_val(self) -> list[list[Floats] | None]:
        """Of the most probable tokens, position by position."""
        return self._tops(lambda row: row.output_top_logprobs_val)

    @property
    def output_top_logprobs_idx(self) -> list[list[Ints] | None]:
        """The most probable tokens, position by position."""
        return self._top_ids(lambda row: row.output_top_logprobs_idx)

    @property
    def output_token_ids_logprobs_val(self) -> list[list[Floats] | None]:
        """Of the tokens asked for, position by position."""
        return self._asked(lambda row: row.output_token_ids_logprobs_val)

    @property
    def output_token_ids_logprobs_idx(self) -> list[list[Ints] | None]:
        """The tokens asked for, position by position."""
        return self._asked_ids(lambda row: row.output_token_ids_logprobs_val)

    @property
    def input_token_logprobs_val(self) -> list[Floats | None]:
        """Of the tokens of the prompt."""
        return self._floats(lambda row: row.input_token_logprobs_val)

    @property
    def input_token_logprobs_idx(self) -> list[Ints | None]:
        """The tokens of the prompt."""
        return self._each(lambda row: row.input_token_logprobs_idx, lambda _, ids: view_i32(ids).tolist())

    @property
    def input_top_logprobs_val(self) -> list[list[Floats] | None]:
        """Of the most probable tokens at each position of the prompt."""
        return self._tops(lambda row: row.input_top_logprobs_val)

    @property
    def input_top_logprobs_idx(self) -> list[list[Ints] | None]:
        """The most probable tokens at each position of the prompt."""
        return self._top_ids(lambda row: row.input_top_logprobs_idx)

    @property
    def input_token_ids_logprobs_val(self) -> list[list[Floats] | None]:
        """Of the tokens asked for, at each position of the prompt."""
        return self._asked(lambda row: row.input_token_ids_logprobs_val)

    @property
    def input_token_ids_logprobs_idx(self) -> list[list[Ints] | None]:
        """The tokens asked for, at each position of the prompt."""
        return self._asked_ids(lambda row: row.input_token_ids_logprobs_val)

    def _each(
        self,
        column: Callable[[TokenLogprobs], memoryview | None],
        read: Callable[[TokenLogprobs, memoryview], T],
    ) -> list[T | None]:
        return [
            None if row is None or (raw := column(row)) is None else read(row, raw) for row in self.logprobs
        ]

    def _floats(self, column: Callable[[TokenLogprobs], memoryview | None]) -> list[Floats | None]:
        return self._each(column, lambda _, raw: list(view_f32(raw)))

    def _tops(self, column: Callable[[TokenLogprobs], memoryview | None]) -> list[list[Floats] | None]:
        return self._each(column, lambda row, raw: _cut(list(view_f32(raw)), row.top_logprobs_num))

    def _top_ids(self, column: Callable[[TokenLogprobs], memoryview | None]) -> list[list[Ints] | None]:
        return self._each(column, lambda row, raw: _cut(view_i32(raw).tolist(), row.top_logprobs_num))

    def _asked(self, column: Callable[[TokenLogprobs], memoryview | None]) -> list[list[Floats] | None]:
        return self._each(column, lambda row, raw: _cut(list(view_f32(raw)), _count(row.token_ids_logprob)))

    def _asked_ids(self, column: Callable[[TokenLogprobs], memoryview | None]) -> list[list[Ints] | None]:
        def repeat(row: TokenLogprobs, raw: memoryview) -> list[Ints]:
            asked = [] if row.token_ids_logprob is None else view_i32(row.token_ids_logprob).tolist()
            return [asked] * (len(_cut(list(view_f32(raw)), len(asked))))

        return self._each(column, repeat)


def _count(column: memoryview | None) -> int:
    return 0 if column is None else column.nbytes // 4


def _cut(values: list[N], width: int) -> list[list[N]]:
    """Cut a flat list into pieces of one width."""
    return [values[start : start + width] for start in range(0, len(values), width)] if width else []
