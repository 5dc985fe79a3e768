"""The tokenizer of a Hugging Face folder, as its JSON files describe it.

`tokenizer.json` says everything of text and tokens; `tokenizer_config.json`, `special_tokens_map.json` and
`chat_template.jinja` are what transformers puts around it. Byte-level vocabularies are supported, and those
of SentencePiece with tokens for bytes; both as BPE. Nothing here imports a tokenizer library: `read_info` and
the detokenizer process need none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from vidette.errors import ModelError
from vidette.models.interface import TokenTable
from vidette.models.json_object import JSONObject, read_json
from vidette.models.vocabulary import BYTE_TOKEN, NFC_STRETCH, SPACE, byte_level_bytes, has_all_bytes

TOKENIZER_FILE: Final = "tokenizer.json"
_CONFIG_FILE: Final = "tokenizer_config.json"
_NAMES_FILE: Final = "special_tokens_map.json"
_TEMPLATE_FILE: Final = "chat_template.jinja"
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MORE_NAMES: Final = ("additional_special_tokens", "extra_special_tokens")
_ID: Final = re.compile("[0-9]{1,10}")
"""A token id as a text."""


class AddedName(msgspec.Struct, frozen=True):
    """A token that is found in a text by its name."""

    id: int
    content: str
    special: bool = False
    """Whether it is not shown unless a request asks for it."""
    lstrip: bool = False
    rstrip: bool = False


class _Kind(msgspec.Struct):
    type: str | None = None


class _Model(msgspec.Struct):
    vocab: dict[str, int]
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _File(msgspec.Struct):
    """The parts of tokenizer.json that are read here; the merges, most of the file, are skipped."""

    model: msgspec.Raw
    added_tokens: list[AddedName] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


class FolderTokenizer(NamedTuple):
    """What the files say."""

    path: Path
    """tokenizer.json."""
    tokens: list[str]
    """By id; empty where the vocabulary has a gap."""
    added: list[AddedName]
    """Tokens that are found in a text by their names."""
    byte_level: bool
    """Whether tokens are written in the byte alphabet; else as SentencePiece writes them."""
    byte_tokens: bool
    """Whether tokens such as "<0x0A>" are bytes."""
    space_prefix: bool
    """Whether a space is put before a text, which is taken away again where a text begins."""
    start: tuple[int, ...]
    """Ids put before every text."""
    names: Mapping[str, str]
    """Special tokens by the names that chat templates have for them, such as "bos_token"."""
    template: str | None
    """Jinja source of the chat template."""
    stretch: int
    """A token stands for at most so many bytes of a text for each of its own; 0: that is not known."""


def read_folder_tokenizer(folder: Path) -> FolderTokenizer:
    """Read the files of a folder.

    Raises:
        ModelError: there is no tokenizer.json; a file cannot be read or is damaged; or the tokenizer is of
            a kind that is not supported.
    """
    path = folder / TOKENIZER_FILE
    file, model = _read_file(path)
    config = _read_if_there(folder / _CONFIG_FILE)
    names = _read_names(config, _read_if_there(folder / _NAMES_FILE))
    added = _read_added(path, file, model, config, {*names.values(), *_more_names(config)})
    tokens = _by_id(path, model.vocab, {token.id: token.content for token in added})
    byte_level, byte_tokens, space_prefix = _read_decoder(path, file.decoder)
    return FolderTokenizer(
        path=path,
        tokens=tokens,
        added=added,
        byte_level=byte_level,
        byte_tokens=byte_tokens,
        space_prefix=space_prefix,
        start=_read_start(path, file.post_processor, len(tokens)),
        names=names,
        template=_read_template(folder, config),
        stretch=_stretch(file, model, added, byte_level=byte_level, byte_tokens=byte_tokens),
    )


def folder_start_token(folder: Path) -> int | None:
    """Return the id of the token that comes before every text; None if there is none, or no tokenizer.

    Raises:
        ModelError: as `read_folder_tokenizer`.
    """
    if not (folder / TOKENIZER_FILE).exists():
        return None
    return next(iter(read_folder_tokenizer(folder).start), None)


def folder_token_table(tokenizer: FolderTokenizer) -> TokenTable:
    """Return the bytes of each token."""
    if tokenizer.byte_level:
        token_bytes = byte_level_bytes(tokenizer.tokens)
        for added in tokenizer.added:
            token_bytes[added.id] = added.content.encode()  # text already, not in the byte alphabet
    else:
        token_bytes = [token.replace(SPACE, " ").encode() for token in tokenizer.tokens]
        if tokenizer.byte_tokens:
            for token_id, token in enumerate(tokenizer.tokens):
                if match := BYTE_TOKEN.fullmatch(token):
                    token_bytes[token_id] = bytes.fromhex(match[1])
    special = frozenset([added.id for added in tokenizer.added if added.special])
    return TokenTable(token_bytes, special, space_prefix=tokenizer.space_prefix)


def _read_file(path: Path) -> tuple[_File, _Model]:
    try:
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise ModelError(
            f"{path.parent} has no {TOKENIZER_FILE}; other files of tokenizers (tokenizer.model, vocab.json) "
            "are not read; `AutoTokenizer.from_pretrained(...).save_pretrained(...)` of transformers makes it"
        ) from exc
    except OSError as exc:
        raise ModelError(f"cannot read {path}: {exc}") from exc
    try:
        file = msgspec.json.decode(data, type=_File)
        kind = msgspec.json.decode(file.model, type=_Kind).type
        if kind not in (None, "BPE"):
            raise ModelError(f"{path}: tokenizers of type {kind!r} are not supported; 'BPE' is")
        model = msgspec.json.decode(file.model, type=_Model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ModelError(f"{path} is not a usable {TOKENIZER_FILE}: {exc}") from exc
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise ModelError(
            f"{path}: tokens that are marked as the beginning or end of a word are not supported"
        )
    return file, model


def _read_added(
    path: Path, file: _File, model: _Model, config: JSONObject, named: Collection[str]
) -> list[AddedName]:
    """Return what a text has as one token: what tokenizer.json says, and what transformers adds to it.

    Args:
        path: tokenizer.json.
        file: its contents.
        model: its vocabulary.
        config: tokenizer_config.json.
        named: the special tokens of the config, which are special whatever tokenizer.json says.
    """
    added = {token.content: token for token in file.added_tokens}
    if len(added) != len(file.added_tokens):
        raise ModelError(f"{path}: added_tokens has a token twice")
    more = config.child("added_tokens_decoder")
    for key in more.values:
        token = more.child(key)
        content = token.string("content")
        if content not in added:
            if not _ID.fullmatch(key):
                raise ModelError(
                    f"{config.path}: the id of {content!r} is {key!r:.40}; it must be 1 to 10 digits"
                )
            special = token.boolean("special", default=False)
            added[content] = AddedName(model.vocab.get(content, int(key)), content, special=special)
    for content in named:
        if content in added:
            added[content] = msgspec.structs.replace(added[content], special=True)
        elif content in model.vocab:
            added[content] = AddedName(model.vocab[content], content, special=True)
    return sorted(added.values(), key=lambda token: token.id)


def _by_id(path: Path, vocab: Mapping[str, int], added: Mapping[int, str]) -> list[str]:
    """Return all tokens by id; whatever has a name of its own has an id of its own."""
    size = len(vocab) + len(added)
    highest = max([*vocab.values(), *added], default=-1)
    if not size or min([*vocab.values(), *added]) < 0 or highest >= 2 * size + 1024:
        raise ModelError(f"{path}: {size} tokens cannot have ids up to {highest}")
    tokens = [""] * (highest + 1)
    for token, token_id in [*vocab.items(), *((token, token_id) for token_id, token in added.items())]:
        if tokens[token_id] not in ("", token):
            raise ModelError(f"{path}: {tokens[token_id]!r} and {token!r} both have the id {token_id}")
        tokens[token_id] = token
    for token_id, token in added.items():
        if vocab.get(token, token_id) != token_id:
            raise ModelError(f"{path}: {token!r} has the ids {vocab[token]} and {token_id}")
    return tokens


def _parts(section: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """Return a part of the tokenizer, or the parts it is made of if it is a sequence."""
    found: list[Mapping[str, Any]] = []
    left: list[object] = [section]
    while left:
        match left.pop():
            case {"type": "Sequence", **rest}:
                inner = rest.get(members)
                left += reversed(inner) if isinstance(inner, list) else []
            case dict(part):
                found.append(part)
    return found


def _read_decoder(path: Path, decoder: Mapping[str, Any] | None) -> tuple[bool, bool, bool]:
    """Return whether tokens are byte-level, whether some are bytes, and whether texts begin with a space."""
    parts = _parts(decoder, "decoders")
    kinds = [str(part.get("type")) for part in parts]
    if kinds == ["ByteLevel"]:
        return True, False, False
    space_prefix, spaced = False, False
    for kind, part in zip(kinds, parts, strict=True):
        if kind == "Metaspace" and part.get("replacement", SPACE) == SPACE:
            spaced = True
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            space_prefix |= scheme != "never"
        elif kind == "Replace" and part.get("pattern") == {"String": SPACE} and part.get("content") == " ":
            spaced = True
        elif (
            kind == "Strip" and part.get("content") == " " and part.get("start") == 1 and not part.get("stop")
        ):
            space_prefix = True
        elif kind not in ("ByteFallback", "Fuse"):
            spaced = False
            break
    if not spaced:
        raise ModelError(
            f"{path}: tokens are decoded by {' and '.join(kinds) or 'nothing'}, which is not supported; "
            f"byte-level tokens are, and those that have {SPACE!r} for a space"
        )
    return False, "ByteFallback" in kinds, space_prefix


def _read_start(path: Path, post_processor: Mapping[str, Any] | None, size: int) -> tuple[int, ...]:
    """Return the ids that come before every text; `add_bos_token` of the config says nothing."""
    start: list[int] = []
    for part in _parts(post_processor, "processors"):
        if part.get("type") == "TemplateProcessing":
            start += _template_start(path, part, size)
        elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
            match part.get("cls"):
                case [str(), int(token_id)] if 0 <= token_id < size:
                    start.append(token_id)
                case _:
                    raise ModelError(f"{path}: the token that begins a text is not in the vocabulary")
    return tuple(start)


def _template_start(path: Path, part: Mapping[str, Any], size: int) -> list[int]:
    """Return the ids that a template has before the text itself."""
    start: list[int] = []
    known, single = part.get("special_tokens"), part.get("single")
    for piece in single if isinstance(single, list) else ():
        match piece:
            case {"SpecialToken": {"id": str(name)}} if isinstance(known, dict):
                match known.get(name):
                    case {"ids": [*ids]} if all(isinstance(i, int) and 0 <= i < size for i in ids):
                        start += ids
                    case _:
                        raise ModelError(f"{path}: {name!r}, which begins a text, is not in the vocabulary")
            case _:
                break
    return start


def _stretch(
    file: _File, model: _Model, added: list[AddedName], *, byte_level: bool, byte_tokens: bool
) -> int:
    """Return what `FolderTokenizer.stretch` is."""
    stretch = 1
    if any(token.lstrip or token.rstrip for token in added):
        return 0  # takes any number of spaces beside it
    if not byte_level and not (byte_tokens and model.byte_fallback and has_all_bytes(model.vocab)):
        return 0  # any number of unknown characters may become one token, or none
    for part in _parts(file.normalizer, "normalizers"):
        kind = part.get("type")
        if kind == "NFC":
            stretch *= NFC_STRETCH
        elif kind == "Replace":
            if part.get("pattern") != {"String": " "} or part.get("content") != SPACE:
                return 0
        elif kind != "Prepend":
            return 0
    for part in _parts(file.pre_tokenizer, "pretokenizers"):
        if part.get("type") not in ("ByteLevel", "Digits", "Metaspace", "Split"):
            return 0
        if part.get("behavior") == "Removed":
            return 0
    return stretch


def _read_if_there(path: Path) -> JSONObject:
    return read_json(path) if path.exists() else JSONObject(path, {})


def _read_names(config: JSONObject, names: JSONObject) -> dict[str, str]:
    # transformers 4.34 and later write added_tokens_decoder, and all names beside it.
    first, second = (config, names) if config.has("added_tokens_decoder") else (names, config)
    found = {}
    for name in _NAMES:
        where = first if first.has(name) else second
        if where.has(name):
            found[name] = _content(where, name, where.values[name])
    return found


def _more_names(config: JSONObject) -> list[str]:
    """Return the special tokens that have no name of their own for templates."""
    found: list[str] = []
    for key in _MORE_NAMES:
        more = config.values.get(key)
        if isinstance(more, dict):
            more = list(more.values())
        found += [_content(config, key, token) for token in more] if isinstance(more, list) else []
    return found


def _content(where: JSONObject, key: str, token: object) -> str:
    match token:
        case str(name) | {"content": str(name)}:
            return name
        case _:
            raise ModelError(f"{where.path}: {key} is {token!r:.60}, not a token")


def _read_template(folder: Path, config: JSONObject) -> str | None:
    """Return the source of the chat template: a file of its own comes first."""
    path = folder / _TEMPLATE_FILE
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ModelError(f"cannot read {path}: {exc}") from exc
    match config.values.get("chat_template"):
        case None:
            return None
        case str(source):
            return source
        case [*templates]:
            for template in templates:
                match template:
                    case {"name": "default", "template": str(source)}:
                        return source
            return None
        case _:
            raise ModelError(f"{config.path}: chat_template is neither a text nor a list of templates")
