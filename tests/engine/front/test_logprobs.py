"""Log probabilities of a request: merged, taken, said again by another scheduler, each with its own token."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.front.logprobs import Logprobs, LogprobsAsked, TokenLogprob
from vidette.front.stream import Delta, Stream
from vidette_protocol.ids import Vid
from vidette_protocol.messages import FinishReason, StrRow, TokenLogprobs, pack_i32

STOP = FinishReason("stop", matched=2)
ASKED_IDS = (70, 71)


def value_of(place: int) -> float:
    """Return the log probability of the output token at a place; a float32 is equal to it."""
    return -place / 8


def expected(token_id: int, place: int, *, top: int = 2, asked: Sequence[int] = ASKED_IDS) -> TokenLogprob:
    return TokenLogprob(
        token_id,
        value_of(place),
        tuple((100 * place + rank, value_of(place) - rank) for rank in range(top)),
        tuple((asked_id, value_of(place) - 10 * asked_id) for asked_id in asked),
    )


def pack(values: Sequence[float]) -> memoryview:
    return memoryview(struct.pack(f"{len(values)}f", *values))


def told(start: int, count: int, *, prompt: TokenLogprobs | None = None) -> TokenLogprobs:
    """Return what a row says whose tokens are at these places of the output."""
    places = range(start, start + count)
    made = [expected(0, place) for place in places]
    first = TokenLogprobs() if prompt is None else prompt
    return TokenLogprobs(
        output_token_logprobs_val=pack([value_of(place) for place in places]),
        output_top_logprobs_val=pack([value for one in made for _, value in one.top]),
        output_top_logprobs_idx=pack_i32([token for one in made for token, _ in one.top]),
        output_token_ids_logprobs_val=pack([value for one in made for _, value in one.asked]),
        input_token_logprobs_val=first.input_token_logprobs_val,
        input_top_logprobs_val=first.input_top_logprobs_val,
        input_top_logprobs_idx=first.input_top_logprobs_idx,
        input_token_ids_logprobs_val=first.input_token_ids_logprobs_val,
        input_token_logprobs_idx=first.input_token_logprobs_idx,
        token_ids_logprob=pack_i32(ASKED_IDS),
        top_logprobs_num=2,
    )


PROMPT = TokenLogprobs(
    input_token_logprobs_val=pack([math.nan, -0.5]),
    input_top_logprobs_val=pack([math.nan, math.nan, -0.25, -0.5]),
    input_top_logprobs_idx=pack_i32([0, 0, 5, 6]),
    input_token_ids_logprobs_val=pack([math.nan, math.nan, -3.0, -4.0]),
    input_token_logprobs_idx=pack_i32([11, 12]),
)
OF_PROMPT = (
    TokenLogprob(11, None),
    TokenLogprob(12, -0.5, ((5, -0.25), (6, -0.5)), ((70, -3.0), (71, -4.0))),
)


def row(offset: int, *token_ids: int, logprobs: TokenLogprobs | None, last: bool = False) -> StrRow:
    text = "".join(map(chr, token_ids))
    return StrRow(9, offset, token_ids, STOP if last else None, text, logprobs=logprobs)


@pytest.fixture
def stream() -> Stream:
    return Stream("mine", Vid(9), 3, LogprobsAsked(2, ASKED_IDS))


# --- one after the other ---------------------------------------------------------------------------


async def test_each_delta_has_those_of_its_own_tokens(stream: Stream) -> None:
    stream.deliver(row(0, 65, logprobs=told(0, 1)))
    assert await anext(stream) == Delta("A", (65,), None, (expected(65, 0),))
    stream.deliver(row(1, 66, 67, logprobs=told(1, 2)))
    stream.deliver(row(3, 68, logprobs=told(3, 1), last=True))
    rest = (expected(66, 1), expected(67, 2), expected(68, 3))
    assert await anext(stream) == Delta("BCD", (66, 67, 68), STOP, rest)
    assert stream.logprobs == (expected(65, 0), *rest)
    assert (await stream.read()).logprobs == stream.logprobs


async def test_a_request_that_asked_for_none_has_none() -> None:
    stream = Stream("mine", Vid(9), 3)
    stream.deliver(row(0, 65, logprobs=None, last=True))
    done = await stream.read()
    assert (done.logprobs, done.prompt_logprobs, stream.logprobs_asked) == ((), None, None)


async def test_those_of_the_prompt_come_once_and_stay(stream: Stream) -> None:
    assert stream.prompt_logprobs is None
    stream.deliver(row(0, 65, logprobs=told(0, 1, prompt=PROMPT)))
    stream.deliver(row(1, 66, logprobs=told(1, 1), last=True))
    done = await stream.read()
    assert done.prompt_logprobs == stream.prompt_logprobs == OF_PROMPT
    assert done.logprobs == (expected(65, 0), expected(66, 1))


async def test_a_prompt_is_reported_without_any_output(stream: Stream) -> None:
    stream.deliver(row(0, logprobs=told(0, 0, prompt=PROMPT), last=True))
    done = await stream.read()
    assert (done.prompt_logprobs, done.logprobs) == (OF_PROMPT, ())


async def test_a_last_row_without_tokens_adds_none(stream: Stream) -> None:
    stream.deliver(row(0, 65, logprobs=told(0, 1)))
    stream.deliver(row(1, logprobs=None, last=True))
    assert (await stream.read()).logprobs == (expected(65, 0),)


def test_what_has_no_probability_has_no_ranks_either() -> None:
    columns = Logprobs()
    columns.add(
        TokenLogprobs(
            output_token_logprobs_val=pack([math.nan]),
            output_top_logprobs_val=pack([math.nan]),
            output_top_logprobs_idx=pack_i32([0]),
            top_logprobs_num=1,
        ),
        1,
    )
    assert columns.output((65,), 0) == (TokenLogprob(65, None),)
    assert len(columns) == 1


# --- behind the death of a process -----------------------------------------------------------------


async def test_what_is_said_again_has_none_and_is_not_repeated(stream: Stream) -> None:
    stream.deliver(row(0, 65, 66, logprobs=told(0, 2, prompt=PROMPT)))
    await anext(stream)
    stream.deliver(row(2, 67, logprobs=told(2, 1)))  # heard, but not taken
    stream.move(Vid(10))
    stream.deliver(row(0, 65, 66, 67, logprobs=None))
    # The other scheduler finds those of the prompt once more; who has read them already keeps them.
    again = TokenLogprobs(input_token_logprobs_val=pack([-9.0]), input_token_logprobs_idx=pack_i32([11]))
    stream.deliver(row(3, 68, logprobs=told(3, 1, prompt=again), last=True))
    assert await anext(stream) == Delta("CD", (67, 68), STOP, (expected(67, 2), expected(68, 3)))
    done = stream.completion()
    assert done.logprobs == tuple(expected(token, place) for place, token in enumerate((65, 66, 67, 68)))
    assert done.prompt_logprobs == OF_PROMPT


@settings(deadline=None)
@given(
    data=st.data(),
    sizes=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    deaths=st.sets(st.integers(0, 7)),
)
def test_however_it_is_cut_each_token_has_its_own(
    data: st.DataObject, sizes: list[int], deaths: set[int]
) -> None:
    """However rows are cut, merged and read, and whatever died: deltas put together have each its own.

    A scheduler that takes the place of another says what was heard again as one row, without any.
    """
    stream = Stream("mine", Vid(9), 3, LogprobsAsked(2, ASKED_IDS))
    deltas: list[Delta] = []

    async def main() -> None:
        made: list[int] = []
        for step, size in enumerate(sizes):
            if step in deaths:
                stream.move(Vid(100 + step))
                stream.deliver(row(0, *made, logprobs=None))
            new = [65 + len(made) + place for place in range(size)]
            # No row but the last is without tokens, but with a death it may be the first that says any.
            first = not made or step in deaths
            logprobs = told(len(made), size, prompt=PROMPT if first else None)
            stream.deliver(row(len(made), *new, logprobs=logprobs))
            made += new
            if data.draw(st.booleans()) and new:
                deltas.append(await anext(stream))
        stream.deliver(row(len(made), logprobs=None, last=True))
        deltas.extend([delta async for delta in stream])

    trio.run(main)
    whole = stream.completion()
    assert whole.logprobs == tuple(expected(token, place) for place, token in enumerate(whole.token_ids))
    assert whole.prompt_logprobs == OF_PROMPT
    assert len(whole.token_ids) == sum(sizes)
    for delta in deltas:
        assert [one.token_id for one in delta.logprobs] == list(delta.token_ids)
    assert tuple(one for delta in deltas for one in delta.logprobs) == whole.logprobs
