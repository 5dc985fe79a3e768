from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.lifecycle import End, end_of, unheard
from vidette_protocol.messages import FinishReason


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (None, None),
        (FinishReason("abort", message="the caller ended the request"), End.ABORT),
        (FinishReason("stop", matched=2), End.FINISH),
        (FinishReason("length", length=16), End.FINISH),
        (FinishReason("error", message="the model's logits are not finite"), End.FINISH),
    ],
)
def test_an_abort_is_the_answer_to_one_and_every_other_reason_is_an_end_of_its_own(
    reason: FinishReason | None, end: End | None
) -> None:
    assert end_of(reason) is end


@given(heard=st.integers(0, 9), cuts=st.lists(st.integers(0, 4), max_size=5))
def test_who_has_heard_the_beginning_hears_the_rest_once_and_in_order(heard: int, cuts: list[int]) -> None:
    """Of an answer that is said again from offset 0, in whatever rows, exactly what was not heard is new."""
    new: list[int] = []
    offset = 0
    for tokens in cuts:
        row = range(offset, offset + tokens)
        count = unheard(heard + len(new), offset, tokens)
        new += row[tokens - count :]
        offset += tokens
    assert new == list(range(heard, offset))


@pytest.mark.parametrize(
    ("heard", "offset", "tokens", "new"),
    [(0, 0, 3, 3), (3, 0, 3, 0), (5, 0, 3, 0), (2, 0, 3, 1), (3, 3, 2, 2), (1, 2, 1, 1), (2, 2, 0, 0)],
)
def test_the_last_tokens_of_a_row_are_new(heard: int, offset: int, tokens: int, new: int) -> None:
    assert unheard(heard, offset, tokens) == new
