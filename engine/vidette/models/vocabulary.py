"""The vocabulary in a GGUF header: which bytes each token stands for, and which tokens are special.

Byte-level vocabularies write every byte as one printable character: itself where it is printable Latin-1, a
character from U+0100 on otherwise (so "Ġ" is a space). SentencePiece vocabularies write text as it is, but
for spaces, which are "▁"; what they have no piece for is spelled in bytes, by tokens such as "<0x0A>".
Undoing either needs no tokenizer library, which keeps the detokenizer process small.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.gguf import GGUFFile
from vidette.models.interface import TokenTable

BYTE_LEVEL_MODEL: Final = "gpt2"
"""Value of `tokenizer.ggml.model` for byte-level BPE."""
PIECE_MODEL: Final = "llama"
"""Value of `tokenizer.ggml.model` for SentencePiece with tokens for bytes, as Llama 2 and Gemma have it."""

BYTE_TOKEN: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
"""How SentencePiece spells a byte."""
SPACE: Final = "\u2581"
"""What SentencePiece writes for a space."""

NFC_STRETCH: Final = 4
"""NFC makes no text shorter than by this factor; the worst character, U+0390, can be written with 7 bytes."""

# Models end a turn with one of these even where the header names another one as the end of sequence
# (llama.cpp goes by the names as well).
_END_TOKENS: Final = frozenset(
    {
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "</s>",
        "<eos>",
    }
)
# Vocabularies of these words begin every text with a token of its own, unless the header says otherwise, as
# those of SentencePiece do.
_STARTING_SPLITTERS: Final = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(enum.IntEnum):
    """What a token is for, as `tokenizer.ggml.token_type` says."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(NamedTuple):
    """Tokens by id, as written in the header, and the type of each."""

    tokens: list[str]
    types: NDArray[np.int64]
    """[len(tokens)] values of TokenType."""
    model: str = BYTE_LEVEL_MODEL
    """BYTE_LEVEL_MODEL or PIECE_MODEL."""

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Return the ids of all tokens of these types, in order."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """Read the tokens and their types.

    Raises:
        ModelError: the tokenizer is of another kind, or its tables do not fit together.
    """
    model = file.value("tokenizer.ggml.model", str)
    if model not in {BYTE_LEVEL_MODEL, PIECE_MODEL}:
        raise ModelError(
            f"{file.path}: tokenizer {model!r} is not supported; {BYTE_LEVEL_MODEL!r} and {PIECE_MODEL!r} are"
        )
    tokens = file.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path}: the vocabulary is empty")
    types = file.integers("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: {len(tokens)} tokens, but {len(types)} token types")
    return Vocabulary(tokens, types, model)


def read_token_table(file: GGUFFile) -> TokenTable:
    """Return the bytes of each token; control and unknown tokens count as special.

    Raises:
        ModelError: the tokenizer is of another kind, or its tables do not fit together.
    """
    vocabulary = read_vocabulary(file)
    special = vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    if vocabulary.model == PIECE_MODEL:
        token_bytes = [token.replace(SPACE, " ").encode() for token in vocabulary.tokens]
        for token_id in vocabulary.ids_of_type(TokenType.BYTE):
            token_bytes[token_id] = _spelled_byte(file, vocabulary.tokens[token_id])
        as_it_stands = special
    else:
        token_bytes = byte_level_bytes(vocabulary.tokens)
        as_it_stands = [*special, *vocabulary.ids_of_type(TokenType.USER_DEFINED)]
    # These are text already: neither in the byte alphabet nor with "▁" for a space.
    for token_id in as_it_stands:
        token_bytes[token_id] = vocabulary.tokens[token_id].encode()
    return TokenTable(token_bytes, frozenset(special), space_prefix=has_space_prefix(file, vocabulary))


def has_space_prefix(file: GGUFFile, vocabulary: Vocabulary) -> bool:
    """Return whether the tokenizer puts a space before a text."""
    return vocabulary.model == PIECE_MODEL and file.value(
        "tokenizer.ggml.add_space_prefix", bool, default=True
    )


def has_all_bytes(tokens: Collection[str]) -> bool:
    """Return whether a vocabulary of SentencePiece can spell any text: it has a token for every byte."""
    return all(f"<0x{byte:02X}>" in tokens for byte in range(256))


def _spelled_byte(file: GGUFFile, token: str) -> bytes:
    """Return the byte of a token such as "<0x0A>"."""
    match = BYTE_TOKEN.fullmatch(token)
    if match is None:
        raise ModelError(f"{file.path}: the token {token!r} is said to be a byte, as '<0x0A>' would be")
    return bytes.fromhex(match[1])


def read_end_tokens(file: GGUFFile) -> frozenset[int]:
    """Return the ids of the tokens that end an answer: those the header names, and control tokens by name.

    Raises:
        ModelError: an id is not in the vocabulary, or the tokenizer is not supported.
    """
    vocabulary = read_vocabulary(file)
    ends = {
        token_id
        for token_id in vocabulary.ids_of_type(TokenType.CONTROL)
        if vocabulary.tokens[token_id] in _END_TOKENS
    }
    ends |= {token_id for key in _END_KEYS if (token_id := read_token_id(file, vocabulary, key)) is not None}
    return frozenset(ends)


def read_start_token(file: GGUFFile) -> int | None:
    """Return the id of the token that the tokenizer puts before every text; None if it puts none there.

    Raises:
        ModelError: as `read_end_tokens`.
    """
    vocabulary = read_vocabulary(file)
    usual = (
        vocabulary.model == PIECE_MODEL or file.value("tokenizer.ggml.pre", str, "") in _STARTING_SPLITTERS
    )
    if not file.value("tokenizer.ggml.add_bos_token", bool, default=usual):
        return None
    return read_token_id(file, vocabulary, "bos_token_id")


def read_scores(file: GGUFFile, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return the score of each token of SentencePiece; of two that could be made, the one with more is.

    Raises:
        ModelError: they are missing, or do not fit the vocabulary.
    """
    key = "tokenizer.ggml.scores"
    scores = file.metadata.get(key)
    if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f":
        raise ModelError(f"{file.path}: {key} is not an array of floating-point numbers")
    if len(scores) != len(vocabulary.tokens):
        raise ModelError(f"{file.path}: {len(vocabulary.tokens)} tokens, but {len(scores)} scores")
    return scores.astype(np.float32)


def read_token_id(file: GGUFFile, vocabulary: Vocabulary, key: str) -> int | None:
    """Return the token id at `tokenizer.ggml.KEY`, None if the header has none.

    Raises:
        ModelError: the id is not in the vocabulary.
    """
    token_id = file.value(f"tokenizer.ggml.{key}", int, -1)
    if token_id == -1:
        return None
    if not 0 <= token_id < len(vocabulary.tokens):
        raise ModelError(
            f"{file.path}: {key} is {token_id}, outside the vocabulary of {len(vocabulary.tokens)} tokens"
        )
    return token_id


def byte_level_bytes(tokens: list[str]) -> list[bytes]:
    """Return the bytes that byte-level tokens stand for.

    A token with a character outside the byte alphabet stands for its own UTF-8.
    """
    # Latin-1 maps byte b to chr(b), so translating to chr(b) and encoding gives the bytes.
    alphabet = _byte_alphabet()
    to_latin1 = str.maketrans({character: chr(byte) for byte, character in enumerate(alphabet)})
    known = frozenset(alphabet)
    return [
        token.translate(to_latin1).encode("latin-1") if known.issuperset(token) else token.encode()
        for token in tokens
    ]


def silent_bytes(tokens: Collection[str]) -> bytes:
    """Return the bytes that a byte-level vocabulary has no token for: they vanish from a text."""
    return bytes(byte for byte, character in enumerate(_byte_alphabet()) if character not in tokens)


def _byte_alphabet() -> str:
    """Return 256 characters: the one that stands for each byte."""
    printable = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))
    others = (byte for byte in range(256) if byte not in printable)
    stand_ins = {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return "".join(stand_ins.get(byte, chr(byte)) for byte in range(256))
