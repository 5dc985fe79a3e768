"""When a request is over, and how much of its text is not shown: against the whole text looked at naively."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vidette.models import TokenTable
from vidette.models.spelling import Speller, text_mode
from vidette.models.toy_tokenizer import TOY_EOS_ID, toy_token_table
from vidette.scheduler.stops import StopResult, Stops
from vidette_protocol.messages import FinishReason, SamplingParams, TextMode

BYTES = toy_token_table()
EOS = frozenset({TOY_EOS_ID})

WORDS = TokenTable(
    token_bytes=[
        b"a",
        b"b",
        b"ab",
        b"abab",
        b"ba",
        b" ",
        b"\n",
        b"",
        "é".encode(),
        "日".encode()[:1],
        "日".encode()[1:],
        b"\xff",
        b"x" * 20,
        b"<b>",
        b"<eos>",
    ],
    special=frozenset({13, 14}),
    spaced_specials=True,
    space_prefix=True,
)
"""Tokens that are torn characters, several characters, nothing, or hidden and with a stop in their name."""
WORD_EOS = frozenset({14})


def params(**given: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 1000, **given})  # type: ignore[arg-type]


def ids(text: str) -> list[int]:
    return list(text.encode())


def run(stops: Stops, text: str) -> StopResult | None:
    return stops.push(ids(text))


# --- the order of checks ---------------------------------------------------------------------


def test_a_request_that_asks_for_nothing_ends_by_its_length() -> None:
    stops = Stops.of(params(max_new_tokens=3), EOS, BYTES)
    assert not stops.reads
    assert run(stops, "ab") is None
    assert run(stops, "cde") == StopResult(1, 0, FinishReason("length", length=3))
    assert stops.made == 3


def test_length_is_said_before_anything_else_and_what_matched_is_cut_off_all_the_same() -> None:
    length = FinishReason("length", length=3)
    assert run(Stops.of(params(max_new_tokens=3, stop="bc"), EOS, BYTES), "abc") == StopResult(3, 2, length)
    assert run(Stops.of(params(max_new_tokens=3, stop_regex="c"), EOS, BYTES), "abc") == StopResult(
        3, 0, length
    )
    assert Stops.of(params(max_new_tokens=1), EOS, BYTES).push([TOY_EOS_ID]) == StopResult(
        1, 0, FinishReason("length", length=1)
    )
    # What was held back for what did not come is shown.
    assert run(Stops.of(params(max_new_tokens=3, stop="bcd"), EOS, BYTES), "abc") == StopResult(3, 0, length)


def test_a_stop_string_wins_over_a_pattern_and_a_pattern_over_a_token() -> None:
    everything = params(stop="b", stop_regex=["b", "[ab]$"], stop_token_ids=[ord("b")])
    assert run(Stops.of(everything, EOS, BYTES), "b") == StopResult(1, 1, FinishReason("stop", matched="b"))
    rest = params(stop_regex=["x", "[ab]$", "b"], stop_token_ids=[ord("b")])
    assert run(Stops.of(rest, EOS, BYTES), "b") == StopResult(1, 0, FinishReason("stop", matched="[ab]$"))
    token = params(stop_token_ids=[ord("b")])
    assert run(Stops.of(token, EOS, BYTES), "ab") == StopResult(2, 1, FinishReason("stop", matched=ord("b")))


def test_token_0_ends_an_output_like_any_other() -> None:
    stops = Stops.of(params(stop_token_ids=[0]), EOS, BYTES)
    assert stops.push([65, 0, 66]) == StopResult(2, 1, FinishReason("stop", matched=0))
    kept = Stops.of(params(stop_token_ids=[0], no_stop_trim=True), EOS, BYTES)
    assert kept.push([65, 0, 66]) == StopResult(2, 0, FinishReason("stop", matched=0))


def test_the_end_of_sequence_shows_nothing_unless_special_tokens_are_shown() -> None:
    end = FinishReason("stop", matched=TOY_EOS_ID)
    tokens = [65, TOY_EOS_ID]
    assert Stops.of(params(), EOS, BYTES).push(tokens) == StopResult(2, 0, end)
    shown = params(skip_special_tokens=False)
    assert Stops.of(shown, EOS, BYTES).push(tokens) == StopResult(2, len("<eos>"), end)
    kept = params(skip_special_tokens=False, no_stop_trim=True)
    assert Stops.of(kept, EOS, BYTES).push(tokens) == StopResult(2, 0, end)


def test_ignoring_the_end_of_sequence_ignores_stop_tokens_and_not_stop_strings() -> None:
    stops = Stops.of(params(ignore_eos=True, stop_token_ids=[65], stop="b"), EOS, BYTES)
    assert stops.push([65, TOY_EOS_ID, *ids("b")]) == StopResult(3, 1, FinishReason("stop", matched="b"))


def test_nothing_ends_before_the_least_number_of_tokens() -> None:
    asked = params(min_new_tokens=3, stop="b", stop_regex="c", stop_token_ids=[ord("d")])
    for text in ("bbb", "ccc", "ddd"):
        assert run(Stops.of(asked, EOS, BYTES), text) == StopResult(
            3, text != "ccc", FinishReason("stop", matched=ord("d") if text == "ddd" else text[0])
        )
    assert run(Stops.of(asked, EOS, BYTES), "bxx") is None
    assert run(Stops.of(asked, EOS, BYTES), "cxx") is None
    assert run(Stops.of(asked, EOS, BYTES), "dxx") is None
    # One that begins before and ends after counts.
    late = Stops.of(params(min_new_tokens=3, stop="xyz"), EOS, BYTES)
    assert run(late, "xyz") == StopResult(3, 3, FinishReason("stop", matched="xyz"))


def test_what_comes_behind_the_end_does_not_count() -> None:
    stops = Stops.of(params(stop="c"), EOS, BYTES)
    assert run(stops, "abcdef") == StopResult(3, 1, FinishReason("stop", matched="c"))
    assert stops.made == 3


# --- strings ---------------------------------------------------------------------------------


def test_what_could_become_a_stop_string_is_held_and_let_go() -> None:
    stops = Stops.of(params(stop=["<end>", "é"]), EOS, BYTES)
    assert run(stops, "a<") == StopResult(2, 1, None)
    assert run(stops, "en") == StopResult(2, 3, None)
    assert run(stops, "<") == StopResult(1, 1, None)
    assert run(stops, "x") is None
    assert stops.push([0xC3]) == StopResult(1, 1, None)
    assert stops.push([0xA8]) is None
    assert run(stops, "<end>") == StopResult(5, 5, FinishReason("stop", matched="<end>"))


def test_what_the_token_has_behind_the_stop_string_is_cut_off_too() -> None:
    table = TokenTable(token_bytes=[b"one, two, three", b" and stop it"], special=frozenset())
    for keep, held in ((False, len(" stop it")), (True, len(" it"))):
        stops = Stops.of(params(stop=["it", " stop"], no_stop_trim=keep), frozenset(), table)
        assert stops.push([0, 1]) == StopResult(2, held, FinishReason("stop", matched=" stop"))


def test_a_hidden_token_can_be_named_by_a_stop_string() -> None:
    for stop, held in (("<b>", 0), ("a<b", 1), ("<b>a", 1), ("aa", 2), ("b", 0)):
        stops = Stops.of(params(stop=stop), frozenset(), WORDS)
        results = [stops.push([0]), stops.push([13])]
        if results[-1] is None or results[-1].reason is None:
            results.append(stops.push([0]))
        assert results[-1] == StopResult(1, held, FinishReason("stop", matched=stop))


# --- patterns --------------------------------------------------------------------------------


def test_what_a_pattern_matched_stays_and_nothing_waits_for_it() -> None:
    for keep in (False, True):
        stops = Stops.of(params(stop_regex=r"\d{3}", no_stop_trim=keep), EOS, BYTES)
        assert run(stops, "a12") is None
        assert run(stops, "345") == StopResult(1, 0, FinishReason("stop", matched=r"\d{3}"))


def test_a_pattern_sees_characters_and_the_names_of_hidden_tokens() -> None:
    stops = Stops.of(params(stop_regex="^.é<eos>$", ignore_eos=True), EOS, BYTES)
    assert stops.push([0xE6, 0xC3]) is None
    assert stops.push([0xA9, TOY_EOS_ID]) == StopResult(2, 0, FinishReason("stop", matched="^.é<eos>$"))


# --- against the whole text ------------------------------------------------------------------


class Naive(NamedTuple):
    """What a look at the whole text says."""

    taken: int
    shown: bytes
    reason: FinishReason | None


def spelled(asked: SamplingParams, prompt: Sequence[int], tokens: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Return of each token what is shown of it, and what it is with hidden tokens spelled out."""
    speller = Speller(WORDS, text_mode(asked, WORDS, prompt))
    pieces = [speller.spell_both(token) for token in tokens]
    return [(piece, piece if name is None else name) for piece, name in pieces]


def look(asked: SamplingParams, prompt: Sequence[int], tokens: Sequence[int]) -> Naive:
    """Return what a request's output is, from all of its text at once."""
    pieces = spelled(asked, prompt, tokens)
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    assert asked.max_new_tokens is not None
    shown = b""
    full = b""
    places: list[int] = []  # of each byte that is spelled, how many are shown before it
    for count, (token, (piece, name)) in enumerate(zip(tokens, pieces, strict=True), 1):
        before_shown, before_full = len(shown), len(full)
        places += range(len(shown), len(shown) + len(name)) if piece == name else [len(shown)] * len(name)
        shown, full = shown + piece, full + name
        reason: FinishReason | None = None
        keep = len(shown)
        if count >= asked.min_new_tokens:
            found: list[tuple[int, int, int, str]] = []
            for stop in stops:
                for whole, before, at in (
                    (shown, before_shown, list(range(len(shown) + 1))),
                    (full, before_full, [*places, len(shown)]),
                ):
                    for match in re.finditer(f"(?={re.escape(stop)})".encode(), whole):
                        end = match.start() + len(stop.encode())
                        if end > before:
                            found.append((end - before, at[match.start()], at[end], stop))
            if found:
                _, start, end, stop = min(found)
                keep = end if asked.no_stop_trim else start
                reason = FinishReason("stop", matched=stop)
            elif token in WORD_EOS and not asked.ignore_eos:
                keep = len(shown) if asked.no_stop_trim else before_shown
                reason = FinishReason("stop", matched=token)
        if count >= asked.max_new_tokens:
            reason = FinishReason("length", length=asked.max_new_tokens)
        if reason is not None:
            return Naive(count, shown[:keep], reason)
    held = 0
    for stop in stops:
        for length in range(1, len(stop.encode())):
            begun = stop.encode()[:length]
            if shown.endswith(begun):
                held = max(held, length)
            if full.endswith(begun):
                held = max(held, len(shown) - [*places, len(shown)][len(full) - length])
    return Naive(len(tokens), shown[: len(shown) - held], None)


ASKED = st.builds(
    params,
    max_new_tokens=st.sampled_from([6, 1000]),
    min_new_tokens=st.integers(0, 4),
    stop=st.none()
    | st.lists(st.text(alphabet="ab \n日é<>", min_size=1, max_size=5), min_size=1, max_size=3, unique=True),
    skip_special_tokens=st.booleans(),
    spaces_between_special_tokens=st.booleans(),
    no_stop_trim=st.booleans(),
    ignore_eos=st.booleans(),
)
TOKENS = st.lists(st.integers(0, 14), max_size=12)


@given(
    asked=ASKED,
    prompt=st.sampled_from([[13], [0]]),
    tokens=TOKENS,
    cuts=st.lists(st.integers(0, 12), max_size=3).map(sorted),
)
@example(asked=params(stop=["ab", "a<b>ab"]), prompt=[0], tokens=[0, 13, 2], cuts=[])
@example(asked=params(stop=["a<b>bb"]), prompt=[0], tokens=[0, 13, 1], cuts=[])
@example(asked=params(stop=["a<b>ababb"]), prompt=[0], tokens=[0, 13, 2, 0, 1, 1], cuts=[5])
@example(asked=params(stop=["<b>ab"]), prompt=[0], tokens=[13, 2], cuts=[])
@example(asked=params(stop=["<b>b"]), prompt=[0], tokens=[0, 13, 1], cuts=[1, 2])
def test_stops_are_those_of_the_whole_text(
    asked: SamplingParams, prompt: list[int], tokens: list[int], cuts: list[int]
) -> None:
    """For any stops, tokens and steps: how a request ends, with which token, and what is shown of it."""
    stops = Stops.of(asked, WORD_EOS, WORDS, prompt)
    done, result = 0, None
    for end in [*cuts, len(tokens)]:
        if not done < end <= len(tokens):
            continue
        result = stops.push(tokens[done:end])
        done = done + result.taken if result is not None else end
        if result is not None and result.reason is not None:
            break
    shown = b"".join(piece for piece, _ in spelled(asked, prompt, tokens[:done]))
    held = 0 if result is None else result.held
    expected = look(asked, prompt, tokens)
    assert Naive(done, shown[: len(shown) - held], None if result is None else result.reason) == expected
    assert stops.made == done
    assert stops.held == held


@given(asked=ASKED, tokens=TOKENS)
def test_what_was_shown_is_shown_again(asked: SamplingParams, tokens: list[int]) -> None:
    """Told all tokens at once, as of a request that goes on elsewhere, it holds back the same."""
    one_by_one, at_once = (Stops.of(asked, WORD_EOS, WORDS) for _ in range(2))
    for token in tokens:
        result = one_by_one.push([token])
        if result is not None and result.reason is not None:
            return
    at_once.push(tokens)
    assert at_once.held == one_by_one.held
    assert at_once.made == one_by_one.made


@pytest.mark.parametrize("unknown", [-1, 15, 10**9])
def test_an_id_outside_the_vocabulary_is_no_text(unknown: int) -> None:
    stops = Stops.of(params(stop="ab"), WORD_EOS, WORDS)
    assert stops.push([0, unknown]) == StopResult(2, 1, None)
    assert stops.push([1]) == StopResult(1, 2, FinishReason("stop", matched="ab"))


def test_the_mode_is_what_the_detokenizer_is_told() -> None:
    shown = params(skip_special_tokens=False)
    assert Stops.of(shown, WORD_EOS, WORDS, [0]).mode == TextMode.SPECIAL | TextMode.SPACED
    assert Stops.of(params(), WORD_EOS, WORDS, [13]).mode == TextMode.BEGINNING
    assert Stops.of(params(), WORD_EOS, WORDS, [13, 0]).mode == 0
