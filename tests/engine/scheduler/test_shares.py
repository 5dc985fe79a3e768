"""Several detokenizers share the requests: each vid has one of them, and the rest is told to all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.shares import MESSAGE_BYTES, Shares, pack_rows
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    BatchTokenIDOutput,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    SchedulerLedger,
    ShutdownReq,
    TokenLogprobs,
    TokenRow,
)

LEDGER = SchedulerLedger(live=3, steps=7)
steps = st.lists(
    st.lists(st.integers(0, 20).map(lambda count: make_vid(3 * (count % 2), count)), unique=True),
    max_size=5,
)


@given(steps, st.integers(2, 5))
def test_the_rows_of_a_vid_all_go_to_one_of_them_in_order(steps: list[list[int]], count: int) -> None:
    """Each step's rows are told once; those of one vid to one place; and every ledger has a larger number."""
    shares = Shares(count)
    told: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    numbers = []
    for number, vids in enumerate(steps):
        rows = [TokenRow(vid, number, (vid % 7,)) for vid in vids]
        messages = pack_rows(rows, LEDGER, count)
        assert len(messages) == max(1, len({vid % count for vid in vids}))
        for message in messages:
            ((place, share),) = shares.of(message)
            assert isinstance(share, BatchTokenIDOutput)
            assert share.check_columns() is None
            assert (share.ledger.live, share.ledger.steps) == (3, 7)
            told[place] += [(row.vid, row.offset) for row in share.rows()]
            numbers.append(share.ledger.number)
    for place, rows_there in enumerate(told):
        expected = [(vid, at) for at, vids in enumerate(steps) for vid in vids if vid % count == place]
        assert rows_there == expected
    assert numbers == list(range(1, len(numbers) + 1))


def test_what_is_no_row_goes_to_all() -> None:
    shares = Shares(3)
    for message in (FreezeGCReq(id=4), ShutdownReq(), HeartbeatReq(id=1)):
        assert list(shares.of(message)) == [(0, message), (1, message), (2, message)]
    numbered = HeartbeatReq(id=2, scheduler=SchedulerLedger(live=3, steps=7, number=1))
    assert list(shares.of(HeartbeatReq(id=2, scheduler=LEDGER))) == [(place, numbered) for place in range(3)]


@pytest.mark.parametrize("vids", [[], [5], [5, 6]])
def test_one_alone_is_told_all_as_it_is(vids: list[int]) -> None:
    shares = Shares(1)
    rows = [TokenRow(vid, 0, (1,)) for vid in vids]
    messages: list[Message] = [*pack_rows(rows, LEDGER, 1), HeartbeatReq(id=1, scheduler=LEDGER)]
    assert messages[0] == BatchTokenIDOutput.from_rows(rows, LEDGER)
    for message in messages:
        ((place, share),) = shares.of(message)
        assert place == 0
        assert share is message


@given(st.lists(st.integers(0, 3 * MESSAGE_BYTES // 4), max_size=6), st.integers(1, 3), st.booleans())
def test_no_message_is_too_long(sizes: list[int], count: int, logprobs: bool) -> None:
    """Each row is told once and in order, and no message has more than the bound but for its last row."""
    rows = []
    for vid, size in enumerate(sizes):
        told = TokenLogprobs(output_token_logprobs_val=memoryview(bytes(4 * size))) if logprobs else None
        rows.append(TokenRow(vid, 0, () if logprobs else (7,) * size, None, told))
    messages = pack_rows(rows, LEDGER, count)
    parts = [message.vids for message in messages]
    assert parts
    for place in range(count):
        assert [vid for part in parts for vid in part if vid % count == place] == list(range(len(sizes)))[
            place::count
        ]
    for part in parts:
        assert 4 * sum(sizes[vid] for vid in part[:-1]) <= MESSAGE_BYTES
        if len(parts) > len(sizes):
            assert part == [] == sizes
