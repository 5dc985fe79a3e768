from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.ids import MAX_COUNTER, MAX_FRONT_ID, MAX_VID, count_of, front_of, label, make_vid

FRONT_IDS = st.integers(0, MAX_FRONT_ID)
COUNTS = st.integers(0, MAX_COUNTER)


@given(front_id=FRONT_IDS, count=COUNTS)
def test_a_vid_can_be_taken_apart_again(front_id: int, count: int) -> None:
    """front_of and count_of are the inverse of make_vid."""
    vid = make_vid(front_id, count)
    assert (front_id, count) == (front_of(vid), count_of(vid))


@given(front_id=FRONT_IDS, one=COUNTS, other=COUNTS)
def test_vids_of_a_front_are_ordered_as_they_were_issued(front_id: int, one: int, other: int) -> None:
    """Comparing two vids of one front compares their counts."""
    assert (one < other) == (make_vid(front_id, one) < make_vid(front_id, other))


def test_the_largest_vid_is_a_signed_integer_of_64_bits() -> None:
    assert MAX_VID == make_vid(MAX_FRONT_ID, MAX_COUNTER) == (1 << 63) - 1


@pytest.mark.parametrize(
    ("front_id", "count", "message"),
    [
        (-1, 0, "front_id -1 is not within 0 to 32767"),
        (MAX_FRONT_ID + 1, 0, "front_id 32768 is not within 0 to 32767"),
        (0, -1, "count -1 is not within 0 to 281474976710655"),
        (0, MAX_COUNTER + 1, "count 281474976710656 is not within 0 to 281474976710655"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(front_id: int, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_vid(front_id, count)


def test_people_read_the_front_only_where_there_are_several() -> None:
    assert label(make_vid(0, 7)) == "7"
    assert label(make_vid(3, 7)) == "3:7"
