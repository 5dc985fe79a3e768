"""Which bytes tokens add to a text, in every mode; and vocabularies of SentencePiece, against tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Strip
from tokenizers.decoders import Sequence as Decoders
from tokenizers.models import BPE

from vidette.errors import ModelError
from vidette.models import TokenTable
from vidette.models.gguf import GGUFFile
from vidette.models.spelling import Speller, text_mode
from vidette.models.vocabulary import read_token_table
from vidette_protocol.messages import SamplingParams, TextMode

TABLE = TokenTable(
    [b"a", b" b", b"", b"<s>", b"</s>"], frozenset({3, 4}), space_prefix=True, spaced_specials=True
)
S = TextMode


@pytest.mark.parametrize(
    ("mode", "tokens", "text"),
    [
        (0, [3, 1, 0, 4, 1], " ba b"),
        (0, [-1, 0, 5, 10**9, 0], "aa"),
        (S.SPECIAL, [3, 1, 4, 99, 3], "<s> b</s><s>"),
        (S.SPECIAL | S.SPACED, [3, 1, 0, 4, 3, 0, 0], "<s>  ba </s> <s> aa"),
        (S.SPECIAL | S.SPACED, [0, 0, 4], "aa </s>"),
        (S.BEGINNING, [3, 2, 1, 1], "b b"),
        (S.BEGINNING, [0, 1], "a b"),
        (S.BEGINNING | S.SPECIAL, [3, 1], "<s> b"),
        (S.BEGINNING | S.SPECIAL | S.SPACED, [1, 3, 1], "b <s>  b"),
    ],
)
def test_modes(mode: int, tokens: list[int], text: str) -> None:
    assert Speller(TABLE, mode).join(tokens) == text.encode()
    one_by_one = Speller(TABLE, mode)
    assert b"".join(one_by_one.spell(token) for token in tokens) == text.encode()


@pytest.mark.parametrize(
    ("asked", "prompt", "mode"),
    [
        (SamplingParams(), [3, 0], 0),
        (SamplingParams(), [3, 4], S.BEGINNING),
        (SamplingParams(skip_special_tokens=False), [0], S.SPECIAL | S.SPACED),
        (SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=False), [0], S.SPECIAL),
        (SamplingParams(spaces_between_special_tokens=False), [0], 0),
    ],
)
def test_the_mode_of_a_request(asked: SamplingParams, prompt: list[int], mode: int) -> None:
    assert text_mode(asked, TABLE, prompt) == mode
    if not mode & S.SPECIAL:
        usual = TABLE._replace(space_prefix=False)
        assert text_mode(asked, usual, prompt) == 0


# --- SentencePiece --------------------------------------------------------------------------------

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES += ["\u2581", "\u2581the", "a", "é", "日本", "\u2581\u2581", "\u2581<b>", "\ufffd", "<0xZZ>"]
TYPES = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4, 4, 1, 1]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]) -> TokenTable:
    return read_token_table(GGUFFile(write_pieces(tmp_path_factory.mktemp("pieces"), write_gguf)))


def write_pieces(folder: Path, write_gguf: Callable[..., Path], **metadata: Any) -> Path:
    """Write a file with a vocabulary of SentencePiece."""
    return write_gguf(
        folder / "pieces.gguf",
        metadata={
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": None,
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.tokens": PIECES,
            "tokenizer.ggml.token_type": TYPES,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.bos_token_id": 1,
            **{f"tokenizer.ggml.{name}": value for name, value in metadata.items()},
        },
    )


def decode_by_others(tokens: Sequence[int], *, skip: bool) -> str:
    """Return what the decoders that Llama 2 has in tokenizers make of tokens."""
    tokenizer = Tokenizer(BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[]))
    tokenizer.add_special_tokens(PIECES[:3])
    tokenizer.decoder = Decoders([Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=skip)
    return text


TEXTUAL = st.one_of(
    st.integers(0, 2).map(lambda i: [i]),
    st.integers(259, 267).map(lambda i: [i]),
    st.characters(codec="utf-8").map(lambda character: [3 + byte for byte in character.encode()]),
)


@given(parts=st.lists(TEXTUAL, max_size=8), skip=st.booleans())
def test_pieces_are_what_tokenizers_makes_of_them(
    pieces: TokenTable, parts: list[list[int]], skip: bool
) -> None:
    """Whatever whole characters and pieces come where a text begins, the text is that of tokenizers."""
    tokens = [token for part in parts for token in part]
    mode = text_mode(SamplingParams(skip_special_tokens=skip), pieces, [1])
    assert Speller(pieces, mode).join(tokens).decode() == decode_by_others(tokens, skip=skip)


def test_bytes_that_are_no_characters_stay_bytes(pieces: TokenTable) -> None:
    assert Speller(pieces).join([3 + 0xE6, 3 + 0x97, 261]) == b"\xe6\x97a"
    assert pieces.special == {0, 1, 2}


@pytest.mark.parametrize("prefix", [True, False])
def test_the_header_says_whether_a_text_begins_with_a_space_of_the_tokenizers(
    prefix: bool, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    path = write_pieces(tmp_path, write_gguf, add_space_prefix=prefix)
    assert read_token_table(GGUFFile(path)).space_prefix is prefix


@pytest.mark.parametrize("piece", ["<0xZZ>", "a", "<0x0A", "<0x00A>"])
def test_a_byte_that_is_none_is_refused(piece: str, tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    tokens = [*PIECES[:3], piece, *PIECES[4:]]
    with pytest.raises(ModelError) as caught:
        read_token_table(GGUFFile(write_pieces(tmp_path, write_gguf, tokens=tokens)))
    assert f"the token {piece!r} is said to be a byte, as '<0x0A>' would be" in str(caught.value)
