from __future__ import annotations

from vidette_fuzz.stepping.turns import Asked, Book, Prompt
from vidette_protocol.ids import Vid

A, B, C, D = (Vid(number) for number in range(4))


def book(*said: tuple[Vid, Asked], streaming: bool = False) -> Book:
    """Return a book in which some turns were said, each with 9 as its output."""
    made = Book(streaming=streaming)
    for vid, asked in said:
        assert take(made, vid, asked) == []
        made.end(vid, well=True, output=(9,))
    return made


def take(made: Book, vid: Vid, asked: Asked) -> list[Vid]:
    prompt = made.expect(asked)
    assert prompt is not None
    return made.begin(vid, asked, prompt)


def test_a_turn_goes_on_behind_what_it_names() -> None:
    made = book((A, Asked((1,))), (B, Asked((2,), A)))
    assert made.expect(Asked((3,))) == (3,)
    assert made.expect(Asked((3,), A)) == (1, 9, 3)
    assert made.expect(Asked((3,), B)) == (1, 9, 2, 9, 3)
    assert made.expect(Asked((3,), C)) is None


def test_a_turn_in_flight_can_only_be_replaced() -> None:
    made = book((A, Asked((1,))))
    take(made, B, Asked((2,), A))
    assert made.expect(Asked((3,), B)) is None
    assert take(made, C, Asked((3,), B, replace=True)) == [B]
    assert made.turns[C].prompt == (1, 9, 2, 3)
    assert made.live == [C]


def test_what_a_turn_replaces_comes_back_if_it_does_not_count() -> None:
    made = book((A, Asked((1,))), (B, Asked((2,), A)))
    assert take(made, C, Asked((3,), A, replace=True)) == []
    assert made.expect(Asked((4,), B)) is None
    made.end(C, well=False, output=())
    assert made.expect(Asked((4,), B)) == (1, 9, 2, 9, 4)


def test_all_is_replaced_by_a_turn_that_begins_anew() -> None:
    made = book((A, Asked((1,))), (B, Asked((2,), A)))
    take(made, C, Asked((3,), B))
    assert take(made, D, Asked((4,), replace=True)) == [C]
    assert made.blocked == {A, B}


def test_a_late_abort_drops_a_turn_until_another_names_it() -> None:
    for named in (False, True):
        made = book((A, Asked((1,))))
        if named:
            take(made, B, Asked((2,), A))
        made.abort(A)
        assert (A in made.turns) is named


def test_an_abort_of_a_turn_in_flight_is_told_by_its_end() -> None:
    made = book()
    take(made, B, Asked((2,)))
    made.abort(B)
    assert made.live == [B]


def test_a_streaming_session_goes_on_behind_the_last_turn() -> None:
    made = book((A, Asked((1,))), (B, Asked((2,))), streaming=True)
    expected: Prompt = (1, 9, 2, 9, 3)
    assert made.expect(Asked((3,))) == expected
    take(made, C, Asked((3,)))
    assert made.expect(Asked((4,))) is None


def test_a_session_ends_with_its_last_turn() -> None:
    made = book((A, Asked((1,))))
    take(made, B, Asked((2,)))
    made.close()
    assert made.opened
    assert made.expect(Asked((3,))) is None
    made.end(B, well=True, output=())
    assert not made.opened
    assert made.turns == {}
    assert made.expect(Asked((3,))) is None
    made.close()
    made.end(B, well=True, output=())
    assert not made.opened


def test_time_ends_a_session_that_nobody_uses() -> None:
    made = book((A, Asked((1,))))
    take(made, B, Asked((2,)))
    made.wait()
    assert made.opened
    made.end(B, well=True, output=())
    made.wait()
    assert not made.opened


def test_a_copy_is_independent() -> None:
    made = book((A, Asked((1,))))
    twin = made.copy()
    assert twin.key() == made.key()
    take(twin, B, Asked((2,), A))
    assert twin.key() != made.key()
    assert made.turns.keys() == {A}
