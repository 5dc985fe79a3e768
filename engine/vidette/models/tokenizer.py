"""The front's tokenizer, built from a GGUF header alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Strip
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Replace as ReplaceDecoder
from tokenizers.decoders import Sequence as DecoderSequence
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Prepend, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from vidette.errors import ChatTemplateError, ModelError
from vidette.models.chat import ChatTemplate
from vidette.models.gguf import GGUFFile
from vidette.models.vocabulary import (
    NFC_STRETCH,
    PIECE_MODEL,
    SPACE,
    TokenType,
    Vocabulary,
    byte_level_bytes,
    has_all_bytes,
    has_space_prefix,
    read_scores,
    read_start_token,
    read_token_id,
    read_vocabulary,
    silent_bytes,
)

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
)
_LLAMA3: Final = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# Words whose capitals come first: "HelloWorld" is two.
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN: Final = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)


def _split_like_gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False)


def _split_like_smollm() -> PreTokenizer:
    # Each digit on its own, before anything else: so a run of spaces before a digit stays one token.
    return PreTokenizerSequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _split_by(pattern: str) -> Callable[[], PreTokenizer]:
    return lambda: PreTokenizerSequence(
        [Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


class _Words(NamedTuple):
    """How a byte-level vocabulary takes a text."""

    split: Callable[[], PreTokenizer]
    """Cuts it into words before merging."""
    composed: bool = False
    """Whether letters and accents are joined first (NFC)."""
    whole: bool = False
    """Whether a word that is a token becomes it, whatever merges would make of it."""


# Values of `tokenizer.ggml.pre`.
_LIKE_LLAMA3: Final = _Words(_split_by(_LLAMA3), whole=True)
_WORDS: Final[Mapping[str, _Words]] = MappingProxyType(
    {
        "gpt-2": _Words(_split_like_gpt2),
        "smollm": _Words(_split_like_smollm),
        "llama-bpe": _LIKE_LLAMA3,
        "llama3": _LIKE_LLAMA3,
        "llama-v3": _LIKE_LLAMA3,
        "qwen2": _Words(_split_by(_QWEN2), composed=True),
        "tekken": _Words(_split_by(_TEKKEN), whole=True),
    }
)

# Types of tokens that are found in a text by their names, and whether they are special.
_ADDED_TYPES: Final = (((TokenType.CONTROL, TokenType.UNKNOWN), True), ((TokenType.USER_DEFINED,), False))

# Names under which chat templates expect special tokens, and where the header has their ids.
_TEMPLATE_TOKENS: Final = MappingProxyType(
    {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
)


class BPETokenizer:
    """A tokenizer of the library and the model's chat template; implements `Tokenizer`.

    Args:
        tokenizer: the built tokenizer; its pipeline adds no tokens of its own.
        chat_template: the model's template, None if it has none.
        prefix: ids put before every text (the model's beginning-of-sequence token, if it wants one). No
            token is put behind one: a prompt is there to be continued.
        longest: most bytes of a text that one token stands for, special tokens by their names; None: that
            is not known.
        silent: bytes that vanish from a text, since the vocabulary has no token for them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        prefix: Sequence[int] = (),
        longest: int | None = None,
        silent: bytes = b"",
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._prefix = list(prefix)
        self._longest = longest
        self._silent = silent

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the token ids of a text; names of special tokens in it become these tokens.

        Args:
            text: any string; a lone surrogate becomes "?".

        Returns:
            int32 [number of tokens]; the model's beginning-of-sequence token comes first if it wants one.
        """
        # The library refuses lone surrogates, which JSON can carry.
        clean = text.encode("utf-8", errors="replace").decode()
        # As a batch of one: only the batch call lets go of the interpreter, so that others run meanwhile.
        ids: list[int] = self._tokenizer.encode_batch_fast([clean], add_special_tokens=False)[0].ids
        if ids[: len(self._prefix)] != self._prefix:
            ids = self._prefix + ids
        return np.array(ids, dtype=np.int32)

    def fewest_tokens(self, text: str, enough: int) -> int:
        """Return how many tokens a text has if all are as long as the longest, at most `enough`."""
        if self._longest is None:
            return 0
        beginning = text[: enough * self._longest]  # a character is at least a byte
        nbytes = len(beginning.encode("utf-8", errors="replace").translate(None, self._silent))
        return min(enough, -(-nbytes // self._longest))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a conversation with the model's own template, ready for `encode`.

        Raises:
            ChatTemplateError: the model has no template, or the template refuses these messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("the model has no chat template: send a prompt instead of messages")
        return self._chat_template.render(messages)


def build_tokenizer(file: GGUFFile) -> BPETokenizer:
    """Build the tokenizer that a GGUF header describes.

    Raises:
        ModelError: the tokenizer or its way to split words is not supported, its tables do not fit together,
            or the chat template does not compile.
    """
    vocabulary = read_vocabulary(file)
    special_ids = {name: read_token_id(file, vocabulary, key) for name, key in _TEMPLATE_TOKENS.items()}
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        raise ModelError(f"{file.path}: the vocabulary has a token twice")
    start = read_start_token(file)
    template = _build_template(
        file, {name: vocabulary.tokens[i] for name, i in special_ids.items() if i is not None}
    )
    prefix = [] if start is None else [start]
    names = [name.encode() for name in _added(vocabulary)]
    if vocabulary.model == PIECE_MODEL:
        pieces = [piece.replace(SPACE, " ").encode() for piece in vocabulary.tokens]
        return BPETokenizer(
            _build_pieces(file, vocabulary, ids, special_ids["unk_token"]),
            chat_template=template,
            prefix=prefix,
            # Where a byte has no token, any number of unknown characters may become one token, or none.
            longest=max(map(len, [*pieces, *names])) if has_all_bytes(ids) else None,
        )
    words = _read_words(file)
    longest = max(map(len, [*byte_level_bytes(vocabulary.tokens), *names]))
    return BPETokenizer(
        _build_byte_level(file, vocabulary, ids, words),
        chat_template=template,
        prefix=prefix,
        longest=longest * NFC_STRETCH if words.composed else longest,
        silent=silent_bytes(ids),
    )


def _read_words(file: GGUFFile) -> _Words:
    splitter = file.value("tokenizer.ggml.pre", str)
    if splitter not in _WORDS:
        raise ModelError(
            f"{file.path}: pre-tokenizer {splitter!r} is not supported; supported are {', '.join(_WORDS)}"
        )
    return _WORDS[splitter]


def _build_byte_level(
    file: GGUFFile, vocabulary: Vocabulary, ids: Mapping[str, int], words: _Words
) -> Tokenizer:
    merges: list[tuple[str, str]] = []
    for merge in file.strings("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or left not in ids or right not in ids or left + right not in ids:
            raise ModelError(f"{file.path}: the merge {merge!r} does not join two tokens into a third one")
        merges.append((left, right))
    tokenizer = Tokenizer(BPE(vocab=dict(ids), merges=merges, ignore_merges=words.whole))
    if words.composed:
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = words.split()
    tokenizer.decoder = ByteLevelDecoder()
    _add_names(tokenizer, vocabulary)
    return tokenizer


def _build_pieces(
    file: GGUFFile, vocabulary: Vocabulary, ids: Mapping[str, int], unknown: int | None
) -> Tokenizer:
    """Build BPE that does what SentencePiece does.

    SentencePiece joins, again and again, the two neighbours that make the piece with the highest score.
    That is BPE with a merge for each way to cut a piece in two pieces, in the order of the scores. (Only one
    way to cut a piece can come up at all, so the order among those of one piece says nothing.)
    """
    normal = np.array(vocabulary.ids_of_type(TokenType.NORMAL), dtype=np.intp)
    scores = read_scores(file, vocabulary)[normal]
    pieces = [vocabulary.tokens[i] for i in normal[np.argsort(-scores, kind="stable")].tolist()]
    known = frozenset(pieces)
    merges = [
        (left, right)
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if (right := piece[cut:]) in known and (left := piece[:cut]) in known
    ]
    tokenizer = Tokenizer(
        BPE(
            vocab=dict(ids),
            merges=merges,
            byte_fallback=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
        )
    )
    decoders = [ReplaceDecoder(SPACE, " "), ByteFallback(), Fuse()]
    spaces = Replace(" ", SPACE)
    if has_space_prefix(file, vocabulary):
        # As llama.cpp does: before the text, and behind every token that is found by its name.
        tokenizer.normalizer = NormalizerSequence([Prepend(SPACE), spaces])
        tokenizer.decoder = DecoderSequence([*decoders, Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = DecoderSequence(decoders)
    _add_names(tokenizer, vocabulary)
    return tokenizer


def _add_names(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    for types, special in _ADDED_TYPES:
        added = [vocabulary.tokens[token_id] for token_id in vocabulary.ids_of_type(*types)]
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=special) for name in added])


def _added(vocabulary: Vocabulary) -> list[str]:
    """Return the names of the tokens that a text has wherever it has their names."""
    types = [added for some, _ in _ADDED_TYPES for added in some]
    return [vocabulary.tokens[token_id] for token_id in vocabulary.ids_of_type(*types)]


def _build_template(file: GGUFFile, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    source = file.value("tokenizer.chat_template", str, "")
    if not source:
        return None
    try:
        return ChatTemplate(source, special_tokens=special_tokens)
    except ChatTemplateError as exc:
        raise ModelError(f"{file.path}: {exc}") from exc
