"""Patterns searched for piece by piece: what `re.search` finds, and never more than a bounded effort."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vidette_protocol.patterns import MOST_REMEMBERED, Pattern, PatternError, PatternSizeError, Search

PATTERNS = [
    "abc",
    "a+b",
    "(a|b)*c",
    "^ab",
    "ab$",
    "[.!?]$",
    r"\bab\b",
    r"a\Bb",
    "(?m)^b$",
    "(?i)aB",
    "(?i)[a-c]x",
    "(?i)é|[^É]x",
    "[^a]b",
    "a{2,3}b",
    "a{2}",
    "a{,2}b",
    "(?s)a.b",
    "a.b",
    r"\d\w\s",
    r"\D\W\S",
    "(a*)*b",
    "(?:a|())*b",
    "x?",
    r"a$\n",
    r"(?m)a$\nb",
    r"(?a)\w",
    r"(?a)\bé",
    r"(?a)\s|\d",
    r"\Aa|b\Z",
    "a??b",
    "(?:ab|a)(?:c|bcd)$",
    r"(^|\n)b",
    r"\n$",
    "$",
    "(?P<name>a)b",
    r"(?i:A)b",
    r"[a\d_]x",
    r"[^\n\s]b",
    "(?#a comment)b",
    "(?x) a  b # both",
    r"\x61\u00e9",
]


@given(
    pattern=st.sampled_from(PATTERNS),
    text=st.text(alphabet="abcABx1\n\x1c .é_É", max_size=10),
    cuts=st.lists(st.integers(0, 10), max_size=3).map(sorted),
)
@example(pattern="ab$", text="ab\n", cuts=[2])
@example(pattern=r"a$\n", text="a\n", cuts=[])
@example(pattern="ab$", text="ab\nx", cuts=[])
def test_after_each_piece_it_finds_what_re_finds(pattern: str, text: str, cuts: list[int]) -> None:
    """After each piece of any text there is a match just if `re.search` finds one in the text so far."""
    search = Search(Pattern(pattern, 512))
    for start, end in pairwise([0, *cuts, len(text)]):
        found = search.push(text[start:end])
        assert found == bool(re.search(pattern, text[: max(start, end)]))
        if found:
            break


@given(st.data())
def test_any_pattern_of_the_common_kinds_is_found_where_re_finds_it(data: st.DataObject) -> None:
    """Patterns put together at random find what `re.search` finds, character by character."""
    atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\b", "^", "$", r"\n", r"\w"])
    pattern = data.draw(
        st.recursive(
            atoms,
            lambda inner: (
                st.tuples(inner, inner).map("".join)
                | st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})")
                | st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}"])).map(
                    lambda pair: f"(?:{pair[0]}){pair[1]}"
                )
            ),
            max_leaves=6,
        )
    )
    text = data.draw(st.text(alphabet="ab\n", max_size=8))
    search = Search(Pattern(pattern, 512))
    for end in range(1, len(text) + 1):
        found = search.push(text[end - 1 : end])
        assert found == bool(re.search(pattern, text[:end]))
        if found:
            break


def test_what_was_found_can_be_passed_over() -> None:
    search = Search(Pattern(r"\bab", 64))
    assert search.push("x ab")
    search.restart()
    assert not search.push("ab")
    assert search.push(" ab")
    search.restart()
    search.restart()
    assert not search.push("")


def test_a_beginning_that_was_passed_over_stays_the_beginning() -> None:
    search = Search(Pattern("^a?", 64))
    assert search.push("")
    search.restart()
    assert search.push("a")
    search.restart()
    assert not search.push("a")


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"(a)\1", "has a backreference; that is not supported"),
        (r"(a)?(?(1)b|c)", "has a conditional group; that is not supported"),
        ("a(?=b)", "has a lookahead or lookbehind; that is not supported"),
        ("(?<!a)b", "has a negative lookahead or lookbehind; that is not supported"),
        ("(?>a)b", "has an atomic group; that is not supported"),
        ("a++b", "has a possessive repeat; that is not supported"),
    ],
)
def test_what_no_automaton_can_do_is_refused(pattern: str, fault: str) -> None:
    re.compile(pattern)
    with pytest.raises(PatternError) as caught:
        Pattern(pattern, 64)
    assert str(caught.value) == fault


def test_what_newer_parsers_call_a_failure_is_a_lookahead_all_the_same() -> None:
    with pytest.raises(PatternError) as caught:
        Pattern("(?!)", 64)
    assert str(caught.value) == "has a negative lookahead or lookbehind; that is not supported"


@pytest.mark.parametrize(
    "pattern", ["a{64}", "(a{8}){8}", "a{1000000000}", "(){1000000000}", "(()?){1,1000000000}", "(){9999}"]
)
def test_a_pattern_that_needs_too_many_states_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(PatternSizeError) as caught:
        Pattern(pattern, 64)
    assert str(caught.value) == "needs more than 64 states"
    assert Pattern("a{63}", 64).size == 64


def test_what_makes_re_try_for_ever_is_followed_in_one_pass() -> None:
    search = Search(Pattern("(a+)+b", 64))
    assert not search.push("a" * 100_000)
    assert search.push("b")


def test_what_is_remembered_is_bounded() -> None:
    # Which of the last hundred characters were "a" is 2 ** 100 states of one that remembers them all.
    pattern = Pattern("a(a|b){100}c", 512)
    search, number, highest = Search(pattern), 1, 0
    for _ in range(2000):
        number = number * 1103515245 + 12345 & 0x7FFFFFFF
        assert not search.push("ab"[number >> 16 & 1])
        highest = max(highest, pattern.remembered)
    assert MOST_REMEMBERED / 2 < highest <= MOST_REMEMBERED + 512
    assert search.push("a" + "b" * 100 + "c")
