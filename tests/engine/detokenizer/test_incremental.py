"""Tokens to text, in pieces: together they are the whole, and no piece is ever taken back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.detokenizer.incremental import IncrementalText
from vidette.models import TokenTable
from vidette.models.toy_tokenizer import toy_token_table

BYTES = toy_token_table()
"""One token for each byte, then four special ones."""

WORDS = TokenTable(
    token_bytes=[
        b"a",
        b" the",
        b"",
        "ä".encode(),
        "日本".encode(),
        "\ufffd".encode(),
        b"\xf0\x9f\xa6\x8a"[:2],
        b"\xf0\x9f\xa6\x8a"[2:],
        b"\xff\xc3",
        b"\xa4\xa4",
        b"\xed\xa0\x80",
        b"\xe2\x82",
        b"<end>",
    ],
    special=frozenset({12}),
)
"""A vocabulary whose tokens end in the middle of characters, or are no UTF-8 at all."""

TABLES = st.sampled_from([BYTES, WORDS])
IDS = st.lists(st.integers(-3, 300), max_size=40)
TEXT_IDS = st.text(max_size=20).map(lambda text: list(text.encode()))
CORRUPTED = st.tuples(TEXT_IDS, TEXT_IDS).map(lambda pair: pair[0][:-1] + pair[1][1:])


def whole(table: TokenTable, ids: Sequence[int]) -> str:
    """Return what the tokens say, decoded in one go."""
    shown = [i for i in ids if 0 <= i < len(table.token_bytes) and i not in table.special]
    return b"".join(table.token_bytes[i] for i in shown).decode(errors="replace")


@given(table=TABLES, ids=st.one_of(IDS, TEXT_IDS, CORRUPTED), data=st.data())
def test_pieces_together_are_the_whole(table: TokenTable, ids: list[int], data: st.DataObject) -> None:
    """For any tokens in any pieces: the texts, put together, are the decoding of all of them."""
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8).map(sorted))
    text = IncrementalText(table)
    pieces = [text.push(ids[start:end], last=False) for start, end in pairwise([0, *cuts, len(ids)])]
    pieces.append(text.push([], last=True))
    assert whole(table, ids) == "".join(pieces)


@given(table=TABLES, ids=st.one_of(IDS, TEXT_IDS, CORRUPTED))
def test_no_more_than_an_unfinished_character_is_held_back(table: TokenTable, ids: list[int]) -> None:
    """After each token, what was said is a beginning of the whole; what was not is at most three bytes."""
    text, said = IncrementalText(table), ""
    for count in range(1, len(ids) + 1):
        said += text.push(ids[count - 1 : count], last=False)
        so_far = b"".join(
            table.token_bytes[i]
            for i in ids[:count]
            if 0 <= i < len(table.token_bytes) and i not in table.special
        )
        assert whole(table, ids).startswith(said)
        assert any(so_far[: len(so_far) - held].decode(errors="replace") == said for held in range(4))


@given(text=st.text(max_size=60))
def test_characters_come_with_their_last_byte(text: str) -> None:
    """Byte by byte, each character of a text is said as soon as it is complete, and not before."""
    incremental = IncrementalText(BYTES)
    for character in text:
        *before, last = character.encode()
        assert [incremental.push([byte], last=False) for byte in before] == [""] * len(before)
        assert incremental.push([last], last=False) == character
    assert incremental.push([], last=True) == ""


@given(first=IDS, second=IDS)
def test_the_last_piece_leaves_nothing_behind(first: list[int], second: list[int]) -> None:
    """What is pushed as the last piece is said in full, the unfinished character included."""
    text = IncrementalText(BYTES)
    assert text.push(first, last=False) + text.push(second, last=True) == whole(BYTES, first + second)


@pytest.mark.parametrize("held", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\xa6", b"\xc3", b"\xe2\x82"])
def test_an_unfinished_character_becomes_a_replacement_only_at_the_end(held: bytes) -> None:
    text = IncrementalText(BYTES)
    assert text.push(list(b"fox " + held), last=False) == "fox "
    assert text.push([], last=False) == ""
    assert text.push([], last=True) == "\ufffd"


def test_the_replacement_character_itself_is_a_character() -> None:
    text = IncrementalText(WORDS)
    assert text.push([5, 0], last=False) == "\ufffda"
    assert text.push([5], last=True) == "\ufffd"


def test_special_tokens_are_not_shown_and_split_no_character() -> None:
    text = IncrementalText(BYTES)
    assert text.push([0xC3, 256, 257], last=False) == ""
    assert text.push([0xA4, 258, 259], last=True) == "ä"


@pytest.mark.parametrize("unknown", [-1, 260, 10**9, -(2**31)])
def test_ids_outside_the_vocabulary_are_not_shown(unknown: int) -> None:
    text = IncrementalText(BYTES)
    assert text.push([ord("a"), unknown, ord("b")], last=True) == "ab"
