"""Scheduler and detokenizer together: what is shown of an output, for every vocabulary, stop and split."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engine.models.conftest import REAL_MODEL

from vidette.detokenizer.detokenizer import Detokenizer
from vidette.models import TokenTable, load_token_table, resolve
from vidette.models.spelling import Speller, text_mode
from vidette.models.toy_tokenizer import TOY_EOS_ID, toy_token_table
from vidette.scheduler.stops import Stops
from vidette_protocol.codec import Codec
from vidette_protocol.messages import (
    BatchTokenIDOutput,
    FinishReason,
    SamplingParams,
    SchedulerLedger,
    TokenRow,
)

PIECES = TokenTable(
    token_bytes=[bytes([byte]) for byte in range(256)]
    + [
        b" ",
        b" the",
        b" quick",
        b"fox",
        "é".encode(),
        "日本".encode(),
        "\ufffd".encode(),
        b"  ",
        b"<s>",
        b"</s>",
    ],
    special=frozenset({264, 265}),
    space_prefix=True,
)
"""As SentencePiece has it: pieces, and a token for each byte."""

CODEC = Codec(sends=[BatchTokenIDOutput], receives=[BatchTokenIDOutput])


class Shown:
    """One request on its way: tokens in, text out.

    Args:
        table: the vocabulary.
        asked: its parameters.
        eos: tokens that end an output.
        prompt: tokens of its prompt.
    """

    def __init__(
        self, table: TokenTable, asked: SamplingParams, eos: frozenset[int], prompt: Sequence[int] = (0,)
    ) -> None:
        self.stops = Stops.of(asked, eos, table, prompt)
        self.detokenizer = Detokenizer(table)
        self.text = ""
        self.reason: FinishReason | None = None
        self.sent: list[int] = []

    def push(self, tokens: Sequence[int]) -> str:
        """Take tokens as a step makes them; return the text so far."""
        result = self.stops.push(tokens)
        taken, held, self.reason = (len(tokens), 0, None) if result is None else result
        mode = 0 if self.sent else int(self.stops.mode)
        row = TokenRow(1, len(self.sent), tuple(tokens[:taken]), self.reason, held=held, mode=mode)
        message = CODEC.decode(CODEC.encode(BatchTokenIDOutput.from_rows([row], SchedulerLedger())))
        assert isinstance(message, BatchTokenIDOutput)
        self.sent += tokens[:taken]
        (said,) = self.detokenizer.step(message).rows()
        self.text += said.text
        return self.text


@pytest.fixture(scope="module")
def real() -> TokenTable:
    return load_token_table(resolve(REAL_MODEL))


def spelled(table: TokenTable, asked: SamplingParams, prompt: Sequence[int], tokens: Sequence[int]) -> bytes:
    """Return the whole text in bytes."""
    return Speller(table, text_mode(asked, table, prompt)).join(tokens)


def params(**given: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 10_000, "ignore_eos": True, **given})  # type: ignore[arg-type]


def check_stream(
    table: TokenTable, tokens: list[int], cuts: list[int], asked: SamplingParams, prompt: Sequence[int]
) -> None:
    """In any pieces, what is shown is the beginning of the whole that is decided; at the end, the whole."""
    request = Shown(table, asked, frozenset(), prompt)
    decoder, fed = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        piece = spelled(table, asked, prompt, tokens[:end])[
            len(spelled(table, asked, prompt, tokens[:start])) :
        ]
        fed += decoder.decode(piece)
        assert request.push(tokens[start:end]) == fed
    request.text += request.detokenizer.step(
        BatchTokenIDOutput.from_rows([TokenRow(1, len(tokens), (), FinishReason("abort"))], SchedulerLedger())
    ).output_strs[0]
    assert request.text == spelled(table, asked, prompt, tokens).decode(errors="replace")
    assert len(request.detokenizer) == 0


@given(data=st.data())
def test_a_stream_is_the_text_for_a_byte_level_vocabulary(real: TokenTable, data: st.DataObject) -> None:
    """For any tokens of the real vocabulary, any split and any mode: the pieces are the whole."""
    tokens = data.draw(st.lists(st.integers(-2, len(real.token_bytes) + 2), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=5).map(sorted))
    asked = params(skip_special_tokens=data.draw(st.booleans()))
    check_stream(real, tokens, cuts, asked, [5])


@given(
    tokens=st.lists(st.integers(-1, 266) | st.integers(0x80, 0xFF), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    asked=st.builds(params, skip_special_tokens=st.booleans()),
    spaced=st.booleans(),
    prompt=st.sampled_from([[264], [9]]),
)
@example(tokens=[0xE6, 0x97, 0xA5, 262], cuts=[2], asked=params(), spaced=False, prompt=[9])
@example(tokens=[264, 257, 0xF0], cuts=[], asked=params(), spaced=False, prompt=[264])
def test_a_stream_is_the_text_for_pieces_and_bytes(
    tokens: list[int], cuts: list[int], asked: SamplingParams, spaced: bool, prompt: list[int]
) -> None:
    """For any pieces and bytes, any split and any mode: the pieces of text are the whole, byte for byte."""
    table = PIECES._replace(spaced_specials=spaced)
    check_stream(table, tokens, sorted(min(cut, len(tokens)) for cut in cuts), asked, prompt)


WRITTEN = st.text(alphabet="ab<日é\ufffd", max_size=14)
STOPS = st.lists(
    st.text(alphabet="ab<日é\ufffd", min_size=1, max_size=4), min_size=1, max_size=3, unique=True
)


@given(text=WRITTEN, stops=STOPS, sizes=st.lists(st.integers(1, 6), max_size=8), keep=st.booleans())
def test_the_text_ends_at_the_stop_string_that_ends_first_and_no_part_of_it_is_ever_shown(
    text: str, stops: list[str], sizes: list[int], keep: bool
) -> None:
    """For any text, stops and steps: the output is the text up to the first stop string to end, and nothing
    of one that matches was shown before; a character that no stop string begins with is shown at once.
    """
    request = Shown(toy_token_table(), params(stop=stops, no_stop_trim=keep), frozenset())
    ends = [
        (end, -len(stop.encode()), stop)
        for stop in stops
        for end in range(1, len(text) + 1)
        if text[:end].endswith(stop)
    ]
    first = min(ends) if ends else None
    whole = text
    if first is not None:
        whole = text[: first[0] if keep else first[0] - len(first[2])]
    raw, done = text.encode(), 0
    for size in [*sizes, *[1] * len(raw)]:
        if done >= len(raw) or request.reason is not None:
            break
        shown = request.push(raw[done : done + size])
        done += size
        assert whole.startswith(shown)
        if request.reason is None:
            # Nothing is held that is not the beginning of a stop string, or of a character.
            so_far = raw[:done].decode(errors="ignore")
            unshown = so_far[len(shown) :].encode() + raw[len(so_far.encode()) : done]
            assert not unshown or any(
                stop.encode().startswith(unshown) or not so_far[len(shown) :] for stop in stops
            )
    if first is None:
        assert request.reason is None
        request.text += request.detokenizer.step(
            BatchTokenIDOutput.from_rows(
                [TokenRow(1, len(request.sent), (), FinishReason("abort"))], SchedulerLedger()
            )
        ).output_strs[0]
    else:
        assert request.reason == FinishReason("stop", matched=first[2])
    assert request.text == whole


def test_the_cut_is_where_the_match_is_and_not_where_the_text_is_first() -> None:
    # The first "END" is within a token that comes before the least number of tokens.
    request = Shown(toy_token_table(), params(stop="END", min_new_tokens=9), frozenset())
    assert request.push(b"say END, then END and more") == "say END, then "
    assert request.reason == FinishReason("stop", matched="END")
    assert bytes(request.sent) == b"say END, then END"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (params(ignore_eos=False), "a\ufffd"),
        (params(ignore_eos=False, no_stop_trim=True, skip_special_tokens=False), "a\ufffd<eos>"),
        (params(stop_token_ids=[0x9F], ignore_eos=False), "a\ufffd"),
        (params(stop_token_ids=[0x9F], ignore_eos=False, no_stop_trim=True), "a\ufffd"),
        (params(max_new_tokens=2), "a\ufffd"),
    ],
)
def test_a_character_that_never_ends_is_shown_at_the_end(asked: SamplingParams, text: str) -> None:
    request = Shown(toy_token_table(), asked, frozenset({TOY_EOS_ID}))
    assert request.push([ord("a")]) == "a"
    assert request.push([0xF0, 0x9F, TOY_EOS_ID][: 3 if asked.max_new_tokens != 2 else 1]) == text


def test_what_the_model_wrote_as_a_replacement_is_shown_at_once() -> None:
    request = Shown(PIECES, params(), frozenset())
    assert request.push([262]) == "\ufffd"
    assert request.push([262, 262]) == "\ufffd" * 3


@given(text=WRITTEN, stops=STOPS, moved=st.integers(0, 30))
def test_a_request_that_goes_on_elsewhere_shows_the_same(text: str, stops: list[str], moved: int) -> None:
    """Said again from the beginning in one row, what is shown now begins with what was shown before."""
    asked = params(stop=stops)
    tokens = list(text.encode())
    first = Shown(toy_token_table(), asked, frozenset())
    before = ""
    for token in tokens[:moved]:
        before = first.push([token])
        if first.reason is not None:
            return
    again = Shown(toy_token_table(), asked, frozenset())
    assert again.push(tokens[:moved]) == before
    for token in tokens[moved:]:
        assert first.push([token]) == again.push([token])
        if first.reason is not None:
            break
    assert again.reason == first.reason
