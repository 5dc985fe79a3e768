"""The front's tokenizer, from the JSON files of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from vidette.errors import ChatTemplateError, ModelError
from vidette.models.chat import ChatTemplate
from vidette.models.tokenizer import BPETokenizer
from vidette.models.tokenizer_json import FolderTokenizer, folder_token_table, read_folder_tokenizer
from vidette.models.vocabulary import silent_bytes


def build_folder_tokenizer(folder: Path) -> BPETokenizer:
    """Build the tokenizer that a folder describes.

    Raises:
        ModelError: as `read_folder_tokenizer`; the library cannot use what the files say; or the chat
            template does not compile.
    """
    described = read_folder_tokenizer(folder)
    longest = max(map(len, folder_token_table(described).token_bytes))
    return BPETokenizer(
        _build(described),
        chat_template=_build_template(folder, described),
        prefix=described.start,
        longest=longest * described.stretch or None,
        silent=silent_bytes(frozenset(described.tokens)) if described.byte_level else b"",
    )


def _build(described: FolderTokenizer) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(described.path.read_bytes())
        # As transformers does: what it was trained or saved with cuts or fills no prompt.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        for token in described.added:
            if token.content not in known:
                added = AddedToken(
                    token.content,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=False,
                    special=token.special,
                )
                tokenizer.add_tokens([added])
    except Exception as exc:  # the library raises no exception of its own
        raise ModelError(f"{described.path} is not a usable tokenizer: {exc}") from exc
    for token in described.added:
        if (found := tokenizer.token_to_id(token.content)) != token.id:
            raise ModelError(
                f"{described.path}: {token.content!r} has the id {token.id}, but becomes {found}: the ids of "
                "added tokens do not follow on the vocabulary"
            )
    return tokenizer


def _build_template(folder: Path, described: FolderTokenizer) -> ChatTemplate | None:
    if described.template is None:
        return None
    try:
        return ChatTemplate(described.template, special_tokens=described.names)
    except ChatTemplateError as exc:
        raise ModelError(f"{folder}: {exc}") from exc
