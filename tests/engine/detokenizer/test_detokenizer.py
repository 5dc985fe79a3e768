"""Step messages in, step messages out: what is open, what ends, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.detokenizer.detokenizer import Detokenizer
from vidette.models.toy_tokenizer import toy_token_table
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    SchedulerLedger,
    Served,
    SpeculativeMetrics,
    StrRow,
    TextMode,
    TokenLogprobs,
    TokenRow,
    pack_f32,
)

STOP = FinishReason("stop", matched=256)
ABORT = FinishReason("abort", message="the caller ended the request")
LEDGER = SchedulerLedger(live=3, waiting=1, blocks_used=5, steps=9)


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(toy_token_table())


def step(detokenizer: Detokenizer, *rows: TokenRow) -> list[StrRow]:
    """Take one step; return its rows."""
    message = detokenizer.step(BatchTokenIDOutput.from_rows(list(rows), LEDGER))
    assert message.check_columns() is None
    assert message.ledger == LEDGER
    assert message.detokenizer_open == len(detokenizer)
    return message.rows()


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def test_rows_come_out_in_order_with_their_text(detokenizer: Detokenizer) -> None:
    rows = [TokenRow(7, 0, ids("one")), TokenRow(3, 0, ids("two")), TokenRow(5, 0, ids("é"), STOP)]
    assert step(detokenizer, *rows) == [
        StrRow(7, 0, ids("one"), None, "one"),
        StrRow(3, 0, ids("two"), None, "two"),
        StrRow(5, 0, ids("é"), STOP, "é"),
    ]
    assert len(detokenizer) == 2


# Each field with a value that is not its default, so that one which is forgotten shows.
SHARED: dict[str, object] = {
    "vid": 5,
    "offset": 0,
    "token_ids": ids("ab"),
    "reason": STOP,
    "logprobs": TokenLogprobs(output_token_logprobs_val=pack_f32([-1.0, -2.0])),
    "spec": SpeculativeMetrics(2, 3, (1, 1)),
    "served": Served(3),
}


def test_all_that_a_row_of_tokens_says_a_row_of_text_says_as_well(detokenizer: Detokenizer) -> None:
    assert SHARED.keys() == set(TokenRow.__struct_fields__) & set(StrRow.__struct_fields__)
    assert set(StrRow.__struct_fields__) - SHARED.keys() == {"text"}
    assert set(TokenRow.__struct_fields__) - SHARED.keys() == {"decoded_text", "held", "mode"}
    (row,) = step(detokenizer, TokenRow(**SHARED))  # type: ignore[arg-type]
    assert {name: value for name, value in msgspec.structs.asdict(row).items() if name != "text"} == SHARED


def test_the_time_is_told_of_those_that_are_timed(detokenizer: Detokenizer) -> None:
    rows = [TokenRow(1, 0, ids("a"), served=Served(3)), TokenRow(2, 0, ids("b"), served=Served(begun_at=7.0))]
    said = detokenizer.step(BatchTokenIDOutput.from_rows([*rows, TokenRow(3, 0, ids("c"))], LEDGER), 9.0)
    assert said.served == [Served(3), Served(begun_at=7.0, made_at=9.0), None]


def test_text_that_the_scheduler_decided_on_goes_before_that_of_the_tokens(detokenizer: Detokenizer) -> None:
    rows = [TokenRow(1, 0, ids("b"), decoded_text="a"), TokenRow(2, 0, ids("c"), STOP, decoded_text="x")]
    assert [row.text for row in step(detokenizer, *rows)] == ["ab", "xc"]


def test_what_is_held_back_comes_later_or_never(detokenizer: Detokenizer) -> None:
    texts = [
        step(detokenizer, row)[0].text
        for row in (
            TokenRow(1, 0, ids("see <"), held=1),
            TokenRow(1, 5, ids("en"), held=3),
            TokenRow(1, 7, ids("tries<")),
            TokenRow(1, 13, ids("en"), held=2),
            TokenRow(1, 15, ids("d> of"), STOP, held=7),
        )
    ]
    assert texts == ["see ", "", "<entries<", "", ""]
    assert len(detokenizer) == 0


def test_an_end_that_cuts_nothing_off_says_what_was_held_back(detokenizer: Detokenizer) -> None:
    step(detokenizer, TokenRow(1, 0, ids("a<en"), held=3))
    assert step(detokenizer, TokenRow(1, 4, (), ABORT))[0].text == "<en"


def test_the_first_row_says_how_tokens_become_text(detokenizer: Detokenizer) -> None:
    rows = [TokenRow(1, 0, (65, 256), mode=TextMode.SPECIAL), TokenRow(2, 0, (65, 256))]
    assert [row.text for row in step(detokenizer, *rows)] == ["A<eos>", "A"]
    rows = [TokenRow(1, 2, (256,)), TokenRow(2, 2, (256,))]
    assert [row.text for row in step(detokenizer, *rows)] == ["<eos>", ""]


def test_holding_back_what_was_said_is_a_fault_of_the_scheduler(detokenizer: Detokenizer) -> None:
    step(detokenizer, TokenRow(1, 0, ids("abc"), held=1))
    with pytest.raises(RemoteProtocolError) as caught:
        step(detokenizer, TokenRow(1, 3, ids("d"), STOP, held=3))
    assert str(caught.value) == "vid 1: 3 bytes are held back, of which 2 have not been said"


def test_a_character_goes_out_with_the_step_that_completes_it(detokenizer: Detokenizer) -> None:
    fox = ids("🦊")
    texts = [step(detokenizer, TokenRow(1, i, (fox[i],)))[0].text for i in range(4)]
    assert texts == ["", "", "", "🦊"]


def test_texts_of_several_requests_do_not_mix(detokenizer: Detokenizer) -> None:
    fox, bear = ids("🦊"), ids("🐻")
    for i in range(3):
        rows = step(detokenizer, TokenRow(1, i, (fox[i],)), TokenRow(2, i, (bear[i],)))
        assert [row.text for row in rows] == ["", ""]
    rows = step(detokenizer, TokenRow(2, 3, (bear[3],)), TokenRow(1, 3, (fox[3],)))
    assert [row.text for row in rows] == ["🐻", "🦊"]


def test_an_end_says_what_was_held_back_and_drops_the_state(detokenizer: Detokenizer) -> None:
    step(detokenizer, TokenRow(1, 0, (*ids("a"), 0xF0, 0x9F)))
    assert len(detokenizer) == 1
    assert step(detokenizer, TokenRow(1, 3, (), STOP)) == [StrRow(1, 3, (), STOP, "\ufffd")]
    assert len(detokenizer) == 0


def test_an_abort_in_the_queue_is_passed_on_and_opens_nothing(detokenizer: Detokenizer) -> None:
    assert step(detokenizer, TokenRow(1, 0, (), ABORT)) == [StrRow(1, 0, (), ABORT, "")]
    assert len(detokenizer) == 0


def test_an_abort_in_the_middle_drops_the_state(detokenizer: Detokenizer) -> None:
    step(detokenizer, TokenRow(1, 0, ids("ab")), TokenRow(2, 0, ids("c")))
    assert step(detokenizer, TokenRow(1, 2, (), ABORT)) == [StrRow(1, 2, (), ABORT, "")]
    assert len(detokenizer) == 1


def test_a_step_without_rows_is_passed_on(detokenizer: Detokenizer) -> None:
    assert detokenizer.step(BatchTokenIDOutput(ledger=LEDGER)) == BatchStrOutput(ledger=LEDGER)


@pytest.mark.parametrize(
    ("before", "row", "fault"),
    [
        ([], TokenRow(1, 1, (65,)), "is not open"),
        ([], TokenRow(1, 4, (), ABORT), "is not open"),
        (
            [TokenRow(1, 0, (65, 66))],
            TokenRow(1, 3, (67,)),
            "expects offset 2",
        ),
        (
            [TokenRow(1, 0, (65, 66))],
            TokenRow(1, 1, (67,)),
            "expects offset 2",
        ),
        (
            [TokenRow(1, 0, (65,))],
            TokenRow(1, 0, (65,)),
            "expects offset 1",
        ),
        (
            [TokenRow(1, 0, (65,), STOP)],
            TokenRow(1, 1, (66,)),
            "is not open",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_a_fault_of_the_scheduler(
    detokenizer: Detokenizer, before: list[TokenRow], row: TokenRow, fault: str
) -> None:
    for earlier in before:
        step(detokenizer, earlier)
    with pytest.raises(RemoteProtocolError) as caught:
        step(detokenizer, row)
    assert str(caught.value) == f"vid 1 {fault}, but a row at offset {row.offset} came"


@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=5),
    picks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=40),
)
def test_any_interleaving_gives_each_request_its_text(texts: list[str], picks: list[tuple[int, int]]) -> None:
    """However the tokens of several requests are shared out to steps, each has its text, and none is left."""
    detokenizer = Detokenizer(toy_token_table())
    tokens = [ids(text) for text in texts]
    said, done = [""] * len(texts), [0] * len(texts)
    for pick, count in picks:
        vid = pick % len(texts)
        piece = tokens[vid][done[vid] : done[vid] + count]
        (row,) = step(detokenizer, TokenRow(vid, done[vid], piece))
        said[vid] += row.text
        done[vid] += len(piece)
    ends = [TokenRow(vid, done[vid], tokens[vid][done[vid] :], STOP) for vid in range(len(texts))]
    for row in step(detokenizer, *ends):
        said[row.vid] += row.text
    assert texts == said
    assert len(detokenizer) == 0
