"""Tokenizers of Hugging Face folders: ids and texts are those of tokenizers and of transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from vidette.errors import ChatTemplateError, ModelError
from vidette.models import ModelSource, TokenTable, load_token_table, load_tokenizer
from vidette.models.spelling import Speller, text_mode
from vidette.models.tokenizer import BPETokenizer
from vidette.models.tokenizer_json import folder_start_token
from vidette_protocol.messages import SamplingParams

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind: 1234567 times.",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": x ** 2}  # the comment\n",
    "Zażółć gęślą jaźń, ÅÄÖ, naïve café; the thing that they thought through.",
    "日本語のテキストと中文、한국어 😀 the end",
] * 4
SPACE = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FROM_SPACES = decoders.Replace(SPACE, " ")

TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=" \n\tthe12é'日\u2581\u0301", max_size=60),
    st.lists(st.sampled_from(["the", " ", "<s>", "</s>", "<tool>", "😀", "é", " fox"]), max_size=12).map(
        "".join
    ),
)


def _train(tokenizer: Tokenizer, alphabet: Sequence[str] = (), size: int = 500) -> dict[str, Any]:
    """Train on the corpus and return the model, as tokenizer.json has it."""
    trainer = BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(alphabet), special_tokens=SPECIALS
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _byte_level(split: Any, normalizer: Any = None) -> Tokenizer:
    """What Llama 3 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    model = _train(tokenizer, pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]]))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(normalizer: Any, split: Any, decoder: Any) -> Tokenizer:
    """What Llama 2, Mistral and Gemma have."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", SPACE)
    model = _train(trained)
    vocab = {token: token_id for token_id, token in enumerate([*SPECIALS, *BYTES])}
    for token in model["vocab"]:
        vocab.setdefault(token, len(vocab))
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(merge) for merge in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if split is not None:
        tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoder
    return tokenizer


def _like_gpt2() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _like_qwen2() -> Tokenizer:
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _byte_level(split, normalizers.NFC())


def _like_llama2() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    decoder = decoders.Sequence(
        [FROM_SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _pieces(normalizer, None, decoder)


def _like_gemma() -> Tokenizer:
    decoder = decoders.Sequence([FROM_SPACES, decoders.ByteFallback(), decoders.Fuse()])
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    return _pieces(normalizers.Replace(" ", SPACE), split, decoder)


def _like_new_llama2() -> Tokenizer:
    split = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    decoder = decoders.Sequence(
        [FROM_SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _pieces(None, split, decoder)


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _like_gpt2,
    "qwen2": _like_qwen2,
    "llama2": _like_llama2,
    "llama2, rewritten": _like_new_llama2,
    "gemma": _like_gemma,
}


class Folder(NamedTuple):
    """What we make of a folder, and the tokenizer in it; a short repr, since Hypothesis prints arguments."""

    ours: BPETokenizer
    table: TokenTable
    theirs: Tokenizer

    def __repr__(self) -> str:
        return "Folder()"


def _as_it_is(_: dict[str, Any]) -> None:
    """Change nothing."""


def _write(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    *,
    config: dict[str, Any] | None = None,
    change: Callable[[dict[str, Any]], object] = _as_it_is,
    files: dict[str, str] | None = None,
) -> Path:
    """Write a folder.

    Args:
        folder: where; created if need be.
        tokenizer: what is in tokenizer.json (default: one like that of GPT-2).
        config: what is in tokenizer_config.json; None: there is none.
        change: changes the contents of tokenizer.json.
        files: contents of further files by name.
    """
    folder.mkdir(exist_ok=True)
    described = json.loads((tokenizer or _small()).to_str())
    change(described)
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _small() -> Tokenizer:
    """Byte-level, without training: 256 bytes, the specials, and one merge."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIALS, "th"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def _load(folder: Path) -> BPETokenizer:
    tokenizer = load_tokenizer(ModelSource("m", folder))
    assert isinstance(tokenizer, BPETokenizer)
    return tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    theirs = FAMILIES[request.param]()
    theirs.add_special_tokens(SPECIALS)
    theirs.add_tokens([AddedToken("<tool>", normalized=False)])
    # What it was trained with must not matter to us.
    cut = Tokenizer.from_str(theirs.to_str())
    cut.enable_truncation(4)
    cut.enable_padding(length=8)
    folder = _write(tmp_path_factory.mktemp("family"), cut)
    return Folder(_load(folder), load_token_table(ModelSource("m", folder)), theirs)


@settings(deadline=None)
@given(text=TEXTS)
def test_ids_and_text_are_those_of_tokenizers(text: str, family: Folder) -> None:
    """For any text: the ids are those of tokenizers, and their bytes are the text that it decodes them to."""
    ids = family.ours.encode(text).tolist()
    clean = text.encode(errors="replace").decode()
    assert ids == family.theirs.encode(clean, add_special_tokens=False).ids
    for skip in (True, False):
        mode = text_mode(SamplingParams(skip_special_tokens=skip), family.table, [])
        shown = Speller(family.table, mode).join(ids)
        assert shown.decode() == family.theirs.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(data=st.data())
def test_tokens_in_any_order_are_spelled_as_tokenizers_does(data: st.DataObject, family: Folder) -> None:
    """For any tokens: the text is that of tokenizers, but for bytes that are no characters."""
    vocab = family.theirs.get_vocab()
    whole = sorted(token_id for token, token_id in vocab.items() if token not in BYTES)
    part = st.sampled_from(whole).map(lambda token_id: [token_id])
    if BYTES[0] in vocab:
        part |= st.characters(codec="utf-8").map(
            lambda character: [vocab[f"<0x{byte:02X}>"] for byte in character.encode()]
        )
    ids = [token_id for some in data.draw(st.lists(part, max_size=20)) for token_id in some]
    mode = text_mode(SamplingParams(), family.table, [])
    shown = Speller(family.table, mode).join(ids)
    assert shown.decode(errors="replace") == family.theirs.decode(ids, skip_special_tokens=True)


@settings(deadline=None)
@given(text=TEXTS, times=st.integers(1, 30))
def test_no_text_has_fewer_tokens_than_it_is_said_to_have(text: str, times: int, family: Folder) -> None:
    """For every text: what is told of it without tokenising it is not more than its tokens."""
    assert family.ours.fewest_tokens(text * times, 1000) <= len(family.ours.encode(text * times))


def test_a_long_text_is_known_to_be_long(family: Folder) -> None:
    assert family.ours.fewest_tokens("the fox " * 50_000, 1000) == 1000


@pytest.mark.parametrize(
    ("change", "fewest"),
    [
        (_as_it_is, 1000),
        (lambda d: d["added_tokens"][0].update(rstrip=True), 0),
        (lambda d: d.update(normalizer={"type": "NFKC"}), 0),
        (lambda d: d.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}), 0),
        (lambda d: d.update(pre_tokenizer={"type": "WhitespaceSplit"}), 0),
    ],
)
def test_nothing_is_told_of_texts_that_may_shrink(
    change: Callable[[dict[str, Any]], None], fewest: int, tmp_path: Path
) -> None:
    tokenizer = _load(_write(tmp_path, change=change))
    assert tokenizer.fewest_tokens("a b " * 50_000, 1000) == fewest


# --- what transformers adds -----------------------------------------------------------------------


def _template(*names: str) -> Callable[[dict[str, Any]], object]:
    """Return a change that has tokenizer.json put tokens before and behind a text: "$" is the text."""

    def change(described: dict[str, Any]) -> None:
        single = " ".join("$A" if name == "$" else name for name in names)
        special = [(name, 256 + SPECIALS.index(name)) for name in names if name != "$"]
        tokenizer = _small()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair="$A $B", special_tokens=special
        )
        described["post_processor"] = json.loads(tokenizer.to_str())["post_processor"]

    return change


def _in_sequence(described: dict[str, Any]) -> None:
    _template("<s>", "$")(described)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    described["post_processor"] = {
        "type": "Sequence",
        "processors": [byte_level, described["post_processor"]],
    }


def _like_roberta(described: dict[str, Any]) -> None:
    described["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", 258],
        "cls": ["<s>", 257],
        "trim_offsets": True,
        "add_prefix_space": False,
    }


def _like_roberta_outside(described: dict[str, Any]) -> None:
    _like_roberta(described)
    described["post_processor"]["cls"] = ["<s>", 999]


def _without_specials(described: dict[str, Any]) -> None:
    _template("<s>", "$")(described)
    described["post_processor"]["special_tokens"] = {}


NAMES = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "pad_token": None}


@pytest.mark.parametrize(
    ("change", "config", "start"),
    [
        (_as_it_is, None, []),
        (_as_it_is, NAMES, []),
        (_template("<s>", "$"), None, [257]),
        (_template("<s>", "$"), NAMES, [257]),
        (_template("</s>", "<s>", "$"), NAMES, [258, 257]),
        (_in_sequence, NAMES, [257]),
        (_like_roberta, NAMES, [257]),
        (_template("$", "</s>"), NAMES, []),
        # Where there is a tokenizer.json, it alone decides.
        (_template("<s>", "$"), NAMES | {"add_bos_token": False}, [257]),
        (_as_it_is, NAMES | {"add_bos_token": True}, []),
    ],
)
def test_a_text_begins_as_in_transformers(
    change: Callable[[dict[str, Any]], object],
    config: dict[str, Any] | None,
    start: list[int],
    tmp_path: Path,
) -> None:
    folder = _write(tmp_path, change=change, config=config)
    tokenizer = _load(folder)
    assert tokenizer.encode("th a").tolist() == [
        *start,
        *tokenizer._tokenizer.encode("th a", add_special_tokens=False).ids,
    ]
    assert folder_start_token(folder) == (start[0] if start else None)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder).encode("th a")
    # What they put behind a text would end it; ours is there to be continued.
    assert [token for token in theirs if token != 258 or token in start] == tokenizer.encode("th a").tolist()


def test_a_first_token_that_is_there_is_not_added(tmp_path: Path) -> None:
    tokenizer = _load(_write(tmp_path, change=_template("<s>", "$")))
    assert tokenizer.encode("<s>th").tolist() == [257, 259]
    assert tokenizer.encode("").tolist() == [257]


def test_special_tokens_of_the_configs_are_special(tmp_path: Path) -> None:
    def change(described: dict[str, Any]) -> None:
        described["added_tokens"][1]["special"] = False
        del described["added_tokens"][2]

    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "additional_special_tokens": [{"__type": "AddedToken", "content": "th"}],
        "added_tokens_decoder": {
            "256": {"content": "<unk>", "special": True},
            "260": {"content": "<tool>", "special": False},
            "0000000261": {"content": "<end>", "special": True},
        },
    }
    names = json.dumps({"bos_token": "</s>"})  # older, and not heeded
    template = "{{ bos_token }}{{ eos_token }}"
    folder = _write(
        tmp_path,
        change=change,
        config=config | {"chat_template": template},
        files={"special_tokens_map.json": names},
    )
    tokenizer, table = _load(folder), load_token_table(ModelSource("m", folder))
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<s></s>"
    assert tokenizer.encode("<s></s><tool><end>th").tolist() == [257, 258, 260, 261, 259]
    assert table.special == {256, 257, 258, 259, 261}
    assert table.token_bytes[257:] == [b"<s>", b"</s>", b"th", b"<tool>", b"<end>"]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert theirs.encode("<s></s><tool><end>th") == [257, 258, 260, 261, 259]
    assert {theirs.convert_tokens_to_ids(token) for token in theirs.all_special_tokens} <= table.special


def test_names_of_special_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    names = json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    config = {"bos_token": "<unk>", "chat_template": "{{ bos_token }}{{ eos_token }}"}
    folder = _write(tmp_path, config=config, files={"special_tokens_map.json": names})
    assert _load(folder).render_chat(HI) == "<s></s>"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert theirs.apply_chat_template(HI, tokenize=False) == "<s></s>"


HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("config", "files", "text"),
    [
        ({"chat_template": "one"}, {}, "one"),
        (
            {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]},
            {},
            "d",
        ),
        ({"chat_template": "one"}, {"chat_template.jinja": "file {{ bos_token }}"}, "file <s>"),
        (None, {"chat_template.jinja": "file {{ messages[0].content }}"}, "file Hi"),
    ],
)
def test_where_the_chat_template_is(
    config: dict[str, Any] | None, files: dict[str, str], text: str, tmp_path: Path
) -> None:
    config = config if config is None else {"bos_token": "<s>"} | config
    folder = _write(tmp_path, config=config, files=files)
    assert _load(folder).render_chat(HI) == text
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert theirs.apply_chat_template(HI, tokenize=False) == text


@pytest.mark.parametrize("config", [None, {}, {"chat_template": [{"name": "rag", "template": "r"}]}])
def test_without_a_chat_template_there_is_no_chat(config: dict[str, Any] | None, tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template: send a prompt"):
        _load(_write(tmp_path, config=config)).render_chat(HI)


# --- what is refused ------------------------------------------------------------------------------


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        for key in path[:-1]:
            described = described[key]
        described[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "config", "fault"),
    [
        (
            _set("model", value={"type": "WordPiece", "vocab": {}}),
            None,
            "type 'WordPiece' are not supported; 'BPE' is",
        ),
        (_set("model", value={"type": "Unigram", "vocab": [["a", 0]]}), None, "'Unigram' are not supported"),
        (_set("model", value={"type": "BPE"}), None, "is not a usable tokenizer.json: .*`vocab`"),
        (_set("model", "vocab", value={}), None, "is not a usable tokenizer: .*out of vocabulary"),
        (_set("model", "vocab", "a", value=10**8), None, "cannot have ids up to 100000000"),
        (_set("model", "vocab", "a", value=-1), None, "cannot have ids"),
        (_set("model", "vocab", "a", value=98), None, "both have the id 98"),
        (_set("model", "merges", value=[["x", "yz"]]), None, "is not a usable tokenizer"),
        (_set("model", "end_of_word_suffix", value="</w>"), None, "marked as the beginning or end of a word"),
        (_set("model", "continuing_subword_prefix", value="##"), None, "marked as the beginning or end"),
        (_set("decoder", value=None), None, "decoded by nothing, which is not supported"),
        (
            _set("decoder", value={"type": "WordPiece", "prefix": "##", "cleanup": True}),
            None,
            "decoded by WordPiece",
        ),
        (_set("decoder", value=3), None, "is not a usable tokenizer.json"),
        (
            _set("added_tokens", value=[{"id": 7, "content": "a"}]),
            None,
            "both have the id 7",
        ),
        (lambda d: d["added_tokens"].append(d["added_tokens"][0]), None, "has a token twice"),
        (
            _like_roberta_outside,
            None,
            "begins a text is not in the vocabulary",
        ),
        (
            _without_specials,
            None,
            "'<s>', which begins a text, is not in the vocabulary",
        ),
        (_as_it_is, {"bos_token": 3}, "bos_token is 3, not a token"),
        *(
            (
                _as_it_is,
                {"added_tokens_decoder": {key: {"content": "y"}}},
                f"the id of 'y' is '{key[:30]}.*; it must be 1 to 10 digits",
            )
            for key in ("x", "", "-1", "٢٦٠", "260 ", "2" * 5000)
        ),
        (
            _as_it_is,
            {"added_tokens_decoder": {"2600000000": {"content": "<y>"}}},
            "cannot have ids up to 2600000000",
        ),
        (
            _as_it_is,
            {"added_tokens_decoder": {"300": {"content": "<y>"}}},
            "'<y>' has the id 300, but becomes 260",
        ),
        (_as_it_is, {"chat_template": 3}, "neither a text nor a list"),
        (_as_it_is, {"chat_template": "{% for %}"}, "the chat template does not compile"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object],
    config: dict[str, Any] | None,
    fault: str,
    tmp_path: Path,
) -> None:
    folder = _write(tmp_path, change=change, config=config)
    with pytest.raises(ModelError, match=fault) as caught:
        _load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (None, "has no tokenizer.json; other files of tokenizers"),
        (b"", "is not a usable tokenizer.json"),
        (b"[]", "is not a usable tokenizer.json"),
        (b"\xff{}", "is not a usable tokenizer.json"),
        (
            b'{"model": {"vocab": {"a": 0}}, "decoder": ' + b'{"a":' * 100_000,
            "is not a usable tokenizer.json",
        ),
    ],
)
def test_a_damaged_file_is_refused(data: bytes | None, fault: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "tokenizer.json").write_bytes(data)
    for load in (load_tokenizer, load_token_table):
        with pytest.raises(ModelError, match=fault):
            load(ModelSource("m", tmp_path))


def test_a_folder_without_a_tokenizer_has_no_first_token(tmp_path: Path) -> None:
    assert folder_start_token(tmp_path) is None


def test_the_table_of_a_folder_imports_no_tokenizers(tmp_path: Path) -> None:
    _write(tmp_path)
    script = (
        "import sys\nfrom pathlib import Path\nfrom vidette.models import *\n"
        f"load_token_table(ModelSource('m', Path({str(tmp_path)!r})))\n"
        "print({'tokenizers', 'jinja2', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
