"""Text to tokens with vocabularies of SentencePiece in GGUF files: what SentencePiece and llama.cpp do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.errors import ModelError
from vidette.models.gguf import GGUFFile
from vidette.models.spelling import Speller, text_mode
from vidette.models.tokenizer import build_tokenizer
from vidette.models.vocabulary import read_start_token, read_token_table
from vidette_protocol.messages import SamplingParams

SPACE = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>", "<tool>", "  ", "<b>"]
SPECIAL_TYPES = [2, 3, 3, 4, 4, 4]
FIRST_BYTE = len(SPECIALS)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST_PIECE = FIRST_BYTE + 256

Write = Callable[..., Path]


def _write(write_gguf: Write, path: Path, pieces: Mapping[str, float], **metadata: Any) -> Path:
    """Write a file with these pieces and their scores behind the special tokens and the bytes."""
    tokens = [*SPECIALS, *BYTES, *pieces]
    return write_gguf(
        path,
        metadata={
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * FIRST_PIECE + [*pieces.values()],
            "tokenizer.ggml.token_type": [*SPECIAL_TYPES, *[6] * 256, *[1] * len(pieces)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            **{f"tokenizer.ggml.{name}": value for name, value in metadata.items()},
        },
    )


def sentencepiece(text: str, scores: Mapping[str, float]) -> list[int]:
    """Join the two neighbours that make the piece with the highest score, the leftmost first, to the end."""
    ids = {piece: FIRST_PIECE + place for place, piece in enumerate(scores)}
    parts = [*text.replace(" ", SPACE)]
    while True:
        pairs = [
            (scores[both], -i) for i in range(len(parts) - 1) if (both := parts[i] + parts[i + 1]) in scores
        ]
        if not pairs:
            break
        place = -max(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        token
        for part in parts
        for token in ([ids[part]] if part in ids else [FIRST_BYTE + byte for byte in part.encode()])
    ]


PIECES = st.lists(st.text(alphabet=f"ab{SPACE}", min_size=2, max_size=6), unique=True, max_size=24).flatmap(
    lambda pieces: st.permutations([*"ab", SPACE, *pieces])
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


@settings(deadline=None, max_examples=60)
@given(
    pieces=PIECES,
    texts=st.lists(
        st.text(alphabet="ab c", max_size=40).map(lambda text: text.replace("  ", " a ")), max_size=8
    ),
)
def test_any_vocabulary_does_what_sentencepiece_does(
    pieces: list[str], texts: list[str], folder: Path, write_gguf: Write
) -> None:
    """For any pieces, any scores that differ, and any text: the ids are those of SentencePiece."""
    scores = {piece: float(-rank) for rank, piece in enumerate(pieces)}
    scores = {piece: scores[piece] for piece in sorted(scores)}  # so that ids are in another order
    path = _write(write_gguf, folder / "any.gguf", scores, add_space_prefix=False, add_bos_token=False)
    tokenizer = build_tokenizer(GGUFFile(path))
    for text in texts:
        clean = text.replace("  ", " ")  # two spaces are a token of their own
        assert tokenizer.encode(clean).tolist() == sentencepiece(clean, scores)


SCORES = {
    piece: float(-rank)
    for rank, piece in enumerate([SPACE, "t", "h", "e", "é", "th", SPACE + "th", "the", SPACE + "the"])
}
T, TH, SPACE_THE, THE = (FIRST_PIECE + [*SCORES].index(piece) for piece in ("t", "th", SPACE + "the", "the"))


@pytest.mark.parametrize(
    ("text", "prefix", "ids"),
    [
        ("the", True, [1, SPACE_THE]),
        ("the", False, [1, THE]),
        ("", True, [1]),
        ("<s>the", False, [1, THE]),
        # llama.cpp puts the space behind every token that is found by its name as well.
        ("the<tool>the", True, [1, SPACE_THE, 3, SPACE_THE]),
        ("the<tool>the", False, [1, THE, 3, THE]),
        ("the  the<b>", False, [1, THE, 4, THE, 5]),
        ("the   the", False, [1, THE, 4, SPACE_THE]),
        ("t\n日", False, [1, T, *(FIRST_BYTE + byte for byte in "\n日".encode())]),
        ("<0x0A>", False, [1, *(FIRST_BYTE + byte for byte in b"<0x0A>")]),
        ("\ud800", False, [1, FIRST_BYTE + ord("?")]),
    ],
)
def test_tokens_of_a_text(text: str, prefix: bool, ids: list[int], tmp_path: Path, write_gguf: Write) -> None:
    path = _write(write_gguf, tmp_path / "tokens.gguf", SCORES, add_space_prefix=prefix)
    assert build_tokenizer(GGUFFile(path)).encode(text).tolist() == ids


@settings(deadline=None)
@given(
    text=st.text(max_size=40) | st.text(alphabet="the é\u2581\n", max_size=40),
    prefix=st.booleans(),
    times=st.integers(1, 20),
)
def test_the_bytes_of_a_texts_tokens_are_the_text(
    text: str, prefix: bool, times: int, folder: Path, write_gguf: Write
) -> None:
    """For any text: its tokens spell it ("▁" is a space), and are as many as is told at least."""
    text *= times
    if prefix:
        # No token that is found by its name: the tokenizer's own space would be behind it.
        text = re.sub("  +", " ", f"t{text}")
    path = folder / f"spell-{prefix}.gguf"
    if not path.exists():
        _write(write_gguf, path, SCORES, add_space_prefix=prefix)
    file = GGUFFile(path)
    tokenizer, table = build_tokenizer(file), read_token_table(file)
    ids = tokenizer.encode(text)
    mode = text_mode(SamplingParams(), table, [1])
    assert Speller(table, mode).join(ids.tolist()).decode() == text.replace(SPACE, " ")
    assert tokenizer.fewest_tokens(text, 1000) <= len(ids)


def test_the_first_token_and_the_space_are_there_unless_the_header_says_otherwise(
    tmp_path: Path, write_gguf: Write
) -> None:
    for said, ids in ((None, [1, SPACE_THE]), (True, [1, SPACE_THE]), (False, [SPACE_THE])):
        file = GGUFFile(_write(write_gguf, tmp_path / f"{said}.gguf", SCORES, add_bos_token=said))
        assert build_tokenizer(file).encode("the").tolist() == ids
        assert read_start_token(file) == (None if said is False else 1)


def test_a_vocabulary_that_cannot_spell_every_text_tells_nothing_of_one(
    tmp_path: Path, write_gguf: Write
) -> None:
    tokens = [*SPECIALS, *[f"<gone{byte}>" for byte in range(256)], *SCORES]
    types = [*SPECIAL_TYPES, *[5] * 256, *[1] * len(SCORES)]
    path = _write(write_gguf, tmp_path / "gone.gguf", SCORES, tokens=tokens, token_type=types)
    tokenizer = build_tokenizer(GGUFFile(path))
    assert tokenizer.encode("日" * 100_000).tolist() == [1, FIRST_PIECE, 0]
    assert tokenizer.fewest_tokens("日" * 100_000, 1000) == 0


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        ({"scores": None}, "scores is not an array of floating-point numbers"),
        ({"scores": [1, 2]}, "scores is not an array of floating-point numbers"),
        ({"scores": [1.0, 2.0]}, f"{FIRST_PIECE + len(SCORES)} tokens, but 2 scores"),
        ({"tokens": [*SPECIALS, *BYTES, *["a"] * len(SCORES)]}, "the vocabulary has a token twice"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(
    metadata: dict[str, Any], fault: str, tmp_path: Path, write_gguf: Write
) -> None:
    path = _write(write_gguf, tmp_path / "odd.gguf", SCORES, **metadata)
    with pytest.raises(ModelError, match=fault) as caught:
        build_tokenizer(GGUFFile(path))
    assert str(path) in str(caught.value)
