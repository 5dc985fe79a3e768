"""The front's tokenizer, built from a GGUF header alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from vidette.errors import ChatTemplateError, ModelError
from vidette.models.chat import ChatTemplate
from vidette.models.gguf import GGUFFile
from vidette.models.vocabulary import (
    BYTE_LEVEL_MODEL,
    TokenType,
    Vocabulary,
    byte_level_bytes,
    read_token_id,
    read_vocabulary,
    silent_bytes,
)


def _split_like_gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False)


def _split_like_smollm() -> PreTokenizer:
    # Each digit on its own, before anything else: so a run of spaces before a digit stays one token.
    return PreTokenizerSequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


# Values of `tokenizer.ggml.pre`: how a text is cut into words before merging.
_SPLITTERS: Final[Mapping[str, Callable[[], PreTokenizer]]] = MappingProxyType(
    {"gpt-2": _split_like_gpt2, "smollm": _split_like_smollm}
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


class ByteLevelTokenizer:
    """Byte-level BPE and the model's chat template; implements `Tokenizer`.

    Args:
        tokenizer: the built tokenizer; its pipeline adds no tokens of its own.
        chat_template: the model's template, None if it has none.
        prefix: ids put before every text (the model's beginning-of-sequence token, if it wants one).
        longest: bytes of the longest token, special tokens by their names; None: it is not known.
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


def build_tokenizer(file: GGUFFile) -> ByteLevelTokenizer:
    """Build the tokenizer that a GGUF header describes.

    Raises:
        ModelError: the tokenizer or its way to split words is not supported, its tables do not fit together,
            or the chat template does not compile.
    """
    vocabulary = read_vocabulary(file)
    if vocabulary.model != BYTE_LEVEL_MODEL:
        raise ModelError(
            f"{file.path}: text cannot be tokenized for a {vocabulary.model!r} vocabulary; "
            f"{BYTE_LEVEL_MODEL!r} is supported"
        )
    special_ids = {name: read_token_id(file, vocabulary, key) for name, key in _TEMPLATE_TOKENS.items()}
    bos = special_ids["bos_token"]
    wants_bos = file.value("tokenizer.ggml.add_bos_token", bool, default=False)
    return ByteLevelTokenizer(
        _build_bpe(file, vocabulary),
        chat_template=_build_template(
            file, {name: vocabulary.tokens[i] for name, i in special_ids.items() if i is not None}
        ),
        prefix=[bos] if wants_bos and bos is not None else [],
        longest=max(map(len, [*byte_level_bytes(vocabulary.tokens), *map(str.encode, _added(vocabulary))])),
        silent=silent_bytes(frozenset(vocabulary.tokens)),
    )


def _build_bpe(file: GGUFFile, vocabulary: Vocabulary) -> Tokenizer:
    splitter = file.value("tokenizer.ggml.pre", str)
    if splitter not in _SPLITTERS:
        raise ModelError(
            f"{file.path}: pre-tokenizer {splitter!r} is not supported; supported are {', '.join(_SPLITTERS)}"
        )
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        raise ModelError(f"{file.path}: the vocabulary has a token twice")
    merges: list[tuple[str, str]] = []
    for merge in file.strings("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or left not in ids or right not in ids or left + right not in ids:
            raise ModelError(f"{file.path}: the merge {merge!r} does not join two tokens into a third one")
        merges.append((left, right))

    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = _SPLITTERS[splitter]()
    tokenizer.decoder = ByteLevelDecoder()
    for types, special in _ADDED_TYPES:
        added = [vocabulary.tokens[token_id] for token_id in vocabulary.ids_of_type(*types)]
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=special) for name in added])
    return tokenizer


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
