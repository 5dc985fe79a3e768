"""Tokenizer and token table against tokenizers and transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from vidette.errors import ChatTemplateError, ModelError
from vidette.models import ModelSource, TokenTable, load_token_table, load_tokenizer, read_info
from vidette.models.gguf import GGUFFile
from vidette.models.tokenizer import BPETokenizer, build_tokenizer
from vidette.models.vocabulary import byte_level_bytes, read_start_token, read_token_table

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world!",
    "hello  world   with    runs\t\tof \n\n\n whitespace   ",
    "trailing space ",
    "I'm sure they've said it's John's; WE'LL SEE'",
    "def f(x):\n\treturn {'a': [1, 2, 3], \"b\": x ** 2}  # comment\n",
    "if (a != b && c >= 0x1F) { return a->b[i++]; } /* … */",
    "Zażółć gęślą jaźń, ÅÄÖ, naïve café, e\u0301 (combining)",
    "日本語のテキストと中文、한국어",
    "العربية עברית हिन्दी ไทย",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ⚠️",
    "\x00\x01\x7f\u00a0\u2003\u200b\ufeff\ufffd",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|><repo_name> <|im_star|> <|im_end|",
    "a" * 300,
    "https://example.org/path?q=1&r=%20#frag",
]
DIGITS = [
    "7",
    "123456",
    "3.14159",
    "x1y22z333",
    "at 10 30 on 2024-01-02",
    "a   1",
    "1  2\n\n 3",
    "\t\t42  %",
    " ½ ² Ⅷ ٣٤ ๕",
]
# The vocabulary has no token for some bytes that hardly occur: such characters vanish, in transformers too.
KNOWN_CHARACTERS = st.characters(
    codec="utf-8", exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF
)


class Both(NamedTuple):
    """The two directions; a short repr, since Hypothesis prints the arguments of a test."""

    tokenizer: BPETokenizer
    table: TokenTable

    def __repr__(self) -> str:
        return "Both()"

    def shown(self, ids: Iterable[int]) -> bytes:
        return b"".join(
            self.table.token_bytes[token_id] for token_id in ids if token_id not in self.table.special
        )

    def spelled(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.table.token_bytes[token_id] for token_id in ids)


@pytest.fixture(scope="module")
def real(real_source: ModelSource) -> Both:
    tokenizer = load_tokenizer(real_source)
    assert isinstance(tokenizer, BPETokenizer)
    return Both(tokenizer, load_token_table(real_source))


@pytest.fixture(scope="module")
def tiny(tiny_llama_path: Path) -> Both:
    file = GGUFFile(tiny_llama_path)
    return Both(build_tokenizer(file), read_token_table(file))


@pytest.fixture(scope="module")
def own_tokenizer(hf_tokenizer: Any) -> Any:
    """The model's own tokenizer, independently of our code.

    Reading a GGUF file, transformers drops the splitting of digits that the name "smollm" stands for (in the
    tokenizer.json of the model and in llama.cpp): whitespace before digits comes out differently there.
    """
    backend = type(hf_tokenizer.backend_tokenizer).from_str(hf_tokenizer.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return backend


@pytest.mark.real_model
@pytest.mark.parametrize("text", [*TEXTS, *DIGITS[:5]])
def test_ids_equal_those_of_transformers(text: str, real: Both, hf_tokenizer: Any) -> None:
    assert real.tokenizer.encode(text).tolist() == hf_tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.real_model
@pytest.mark.parametrize("text", [*TEXTS, *DIGITS])
def test_ids_equal_those_of_the_models_own_tokenizer(text: str, real: Both, own_tokenizer: Any) -> None:
    assert real.tokenizer.encode(text).tolist() == own_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.real_model
@settings(deadline=None, max_examples=300)
@given(text=st.text(max_size=100) | st.text(alphabet=" \n\t12a'.,éĠ<|im_end>", max_size=100))
def test_ids_of_any_text_equal_those_of_the_models_own_tokenizer(
    text: str, real: Both, own_tokenizer: Any
) -> None:
    clean = text.encode("utf-8", "replace").decode()
    assert real.tokenizer.encode(text).tolist() == own_tokenizer.encode(clean, add_special_tokens=False).ids


@pytest.mark.real_model
@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=KNOWN_CHARACTERS, max_size=200))
def test_the_bytes_of_a_texts_tokens_are_the_text(text: str, real: Both) -> None:
    ids = real.tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert real.spelled(ids) == text.encode()


@pytest.mark.real_model
@settings(deadline=None, max_examples=500)
@given(ids=st.lists(st.one_of(st.integers(0, 49151), st.integers(0, 300)), max_size=40))
def test_token_bytes_decode_like_tokenizers(ids: list[int], real: Both) -> None:
    expected = real.tokenizer._tokenizer.decode(ids, skip_special_tokens=True)
    assert real.shown(ids).decode("utf-8", errors="replace") == expected


@pytest.mark.real_model
def test_threads_may_share_one_tokenizer(real: Both) -> None:
    def work(text: str) -> tuple[list[int], str]:
        rendered = real.tokenizer.render_chat([{"role": "user", "content": text}])
        return real.tokenizer.encode(rendered).tolist(), rendered

    texts = [text * 20 for text in TEXTS] * 10
    with ThreadPoolExecutor(max_workers=4) as pool:
        assert list(pool.map(work, texts)) == [work(text) for text in texts]


@pytest.mark.real_model
def test_the_real_vocabulary(real: Both, real_source: ModelSource) -> None:
    info, table = read_info(real_source), real.table
    assert len(table.token_bytes) == info.vocab_size == 49152
    assert info.context_len == 8192
    assert info.name == "smollm2-135m-instruct"
    assert info.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert {table.token_bytes[token_id] for token_id in info.eos_token_ids} == {
        b"<|im_end|>",
        b"<|endoftext|>",
    }
    assert info.eos_token_ids < table.special == frozenset(range(17))


@settings(deadline=None)
@given(text=st.text())
def test_bytes_alone_spell_any_text(text: str, tiny: Both) -> None:
    assert tiny.spelled(tiny.tokenizer.encode(text)) == text.encode("utf-8", "replace")


@pytest.mark.real_model
@settings(deadline=None, max_examples=300)
@given(
    text=st.text(max_size=100) | st.text(alphabet="-=\n \x04\U00040000", max_size=300),
    times=st.integers(1, 50),
)
def test_no_text_has_fewer_tokens_than_it_is_said_to_have(text: str, times: int, real: Both) -> None:
    """For every text: what is told of it without tokenising it is not more than its tokens."""
    text *= times
    told = real.tokenizer.fewest_tokens(text, 1000)
    assert told <= len(real.tokenizer.encode(text))
    assert real.tokenizer.fewest_tokens(text, 3) <= min(3, told)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("text", "fewest", "tokens"),
    [
        ("é " * 5000, 186, 5001),  # 15,000 bytes, of which the longest token has 81
        ("\x04" * 5000 + "a", 1, 1),  # a byte that vanishes
        ("\n" + " " * 80, 1, 1),
        ("", 0, 0),
    ],
)
def test_how_few_tokens_a_text_may_have(text: str, fewest: int, tokens: int, real: Both) -> None:
    assert real.tokenizer.fewest_tokens(text, 1000) == fewest
    assert real.tokenizer.fewest_tokens(text, 100) == min(fewest, 100)
    assert len(real.tokenizer.encode(text)) == tokens


@settings(deadline=None)
@given(text=st.lists(st.sampled_from(["<|im_end|>", "<user é>", " th", "é", "\ud800"])).map("".join))
def test_special_tokens_count_with_their_names(text: str, tiny: Both) -> None:
    """For every text: as above, with a vocabulary whose longest tokens are found by their names."""
    assert tiny.tokenizer._longest == len("<|im_end|>")
    assert tiny.tokenizer.fewest_tokens(text, 1000) <= len(tiny.tokenizer.encode(text))


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 258)))
def test_tiny_token_bytes_decode_like_tokenizers(ids: list[int], tiny: Both) -> None:
    expected = tiny.tokenizer._tokenizer.decode(ids, skip_special_tokens=True)
    assert tiny.shown(ids).decode(errors="replace") == expected


def test_merges_and_added_tokens(tiny: Both) -> None:
    assert tiny.tokenizer.encode("th th<|im_end|><user é>").tolist() == [256, 257, 258, 259]
    assert tiny.table.token_bytes[256:] == [b"th", b" th", b"<|im_end|>", "<user é>".encode()]
    assert tiny.table.special == {258}


def test_a_lone_surrogate_becomes_a_question_mark(tiny: Both) -> None:
    assert tiny.tokenizer.encode("a\ud800b").tolist() == tiny.tokenizer.encode("a?b").tolist()


def test_the_first_token_is_added_once_where_the_model_wants_it(
    tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf(tmp_path / "bos.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    tokenizer = build_tokenizer(GGUFFile(path))
    assert tokenizer.encode("a").tolist() == [258, ord("a")]
    assert tokenizer.encode("<|im_end|>a").tolist() == [258, ord("a")]


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "tekken", "qwen2", "gpt-2"])
@pytest.mark.parametrize("said", [None, True, False])
def test_vocabularies_of_some_words_begin_every_text_unless_the_header_says_otherwise(
    pre: str, said: bool | None, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    metadata = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": said}
    file = GGUFFile(write_gguf(tmp_path / "words.gguf", metadata=metadata))
    begins = pre not in {"qwen2", "gpt-2"} if said is None else said
    assert build_tokenizer(file).encode("th").tolist() == ([258] if begins else []) + [256]
    assert read_start_token(file) == (258 if begins else None)


_WORDS = {
    "gpt-2": "I|'|LL| say|:|HelloWorld| 123456|  \n\n| x|/.|\n | éa",
    "smollm": "I|'|LL| say|:|HelloWorld| |1|2|3|4|5|6|  \n\n| x|/.|\n | éa",
    "llama-bpe": "I|'LL| say|:HelloWorld| |123|456|  \n\n| x|/.\n| | éa",
    "llama3": "I|'LL| say|:HelloWorld| |123|456|  \n\n| x|/.\n| | éa",
    "llama-v3": "I|'LL| say|:HelloWorld| |123|456|  \n\n| x|/.\n| | éa",
    "qwen2": "I|'LL| say|:HelloWorld| |1|2|3|4|5|6|  \n\n| x|/.\n| | éa",
    "tekken": "I|'LL| say|:Hello|World| |1|2|3|4|5|6|  \n\n| x|/.\n| | éa",
}


@pytest.mark.parametrize("pre", _WORDS)
def test_where_a_text_is_cut_into_words(pre: str, tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    file = GGUFFile(write_gguf(tmp_path / "words.gguf", metadata={"tokenizer.ggml.pre": pre}))
    cut = build_tokenizer(file)._tokenizer.pre_tokenizer
    assert cut is not None
    words = [word for word, _ in cut.pre_tokenize_str(_WORDS["gpt-2"].replace("|", ""))]
    assert "|".join(b.decode() for b in byte_level_bytes(words)) == _WORDS[pre]


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_a_word_that_is_a_token_needs_no_merges_for_some(
    pre: str, whole: bool, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    metadata = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": ["t h"],  # none for " th"
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = build_tokenizer(GGUFFile(write_gguf(tmp_path / "whole.gguf", metadata=metadata)))
    assert tokenizer.encode(" th").tolist() == ([257] if whole else [32, 256])


def test_letters_and_accents_are_joined_only_for_qwen2(
    tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    for pre, spelled in (("qwen2", "é"), ("gpt-2", "e\u0301")):
        file = GGUFFile(write_gguf(tmp_path / f"{pre}.gguf", metadata={"tokenizer.ggml.pre": pre}))
        tokenizer = build_tokenizer(file)
        assert tokenizer.encode("e\u0301").tolist() == [*spelled.encode()]


def test_no_more_is_told_of_a_text_whose_letters_are_joined(
    tiny_vocabulary: list[str], tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    left, right = (tiny_vocabulary[byte] for byte in "\u0390".encode())
    tokens = [*tiny_vocabulary[:256], left + right]
    metadata = {
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [f"{left} {right}"],
        "tokenizer.ggml.eos_token_id": None,
        "tokenizer.ggml.bos_token_id": None,
    }
    tokenizer = build_tokenizer(GGUFFile(write_gguf(tmp_path / "joined.gguf", metadata=metadata)))
    worst = "\u1fbe\u0308\u0301" * 100  # 7 bytes become 2, and those a token
    assert tokenizer.encode(worst).tolist() == [256] * 100
    assert 50 < tokenizer.fewest_tokens(worst, 1000) <= 100


def test_digits_are_cut_apart_only_for_smollm(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    vocabulary = [*map(chr, range(33, 127)), "Ġ", "12", "ĠĠ"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [1] * len(vocabulary),
        "tokenizer.ggml.merges": ["1 2", "Ġ Ġ"],
        "tokenizer.ggml.eos_token_id": None,
        "tokenizer.ggml.bos_token_id": None,
    }
    ids = {
        pre: build_tokenizer(
            GGUFFile(write_gguf(tmp_path / f"{pre}.gguf", metadata=metadata | {"tokenizer.ggml.pre": pre}))
        )
        .encode("a  12")
        .tolist()
        for pre in ("smollm", "gpt-2")
    }
    spelled = {pre: [vocabulary[token_id] for token_id in found] for pre, found in ids.items()}
    assert spelled == {"smollm": ["a", "ĠĠ", "1", "2"], "gpt-2": ["a", "Ġ", "Ġ", "12"]}


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        (
            {"tokenizer.ggml.model": "bert"},
            "tokenizer 'bert' is not supported; 'gpt2' and 'llama' are",
        ),
        (
            {"tokenizer.ggml.pre": "falcon"},
            "'falcon' is not supported; supported are gpt-2, smollm, llama-bpe",
        ),
        ({"tokenizer.ggml.pre": None}, r"the metadata has no tokenizer\.ggml\.pre"),
        ({"tokenizer.ggml.tokens": None}, r"tokenizer\.ggml\.tokens is absent"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "260 tokens, but 2 token types"),
        (
            {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]},
            "outside the vocabulary",
        ),
        ({"tokenizer.ggml.merges": ["t h x"]}, "the merge 't h x' does not join"),
        ({"tokenizer.ggml.merges": ["th"]}, "the merge 'th' does not join"),
        ({"tokenizer.ggml.merges": ["x y"]}, "the merge 'x y' does not join"),
        ({"tokenizer.ggml.eos_token_id": 260}, "eos_token_id is 260, outside the vocabulary of 260"),
        ({"tokenizer.chat_template": "{% for %}"}, "the chat template does not compile"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused_with_the_reason(
    metadata: dict[str, Any], fault: str, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf(tmp_path / "odd.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=fault) as caught:
        build_tokenizer(GGUFFile(path))
    assert str(path) in str(caught.value)


def test_a_token_that_is_there_twice_is_refused(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    metadata = {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}
    nothing_else = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.bos_token_id": None}
    path = write_gguf(tmp_path / "twice.gguf", metadata=metadata | nothing_else)
    with pytest.raises(ModelError, match="the vocabulary has a token twice"):
        build_tokenizer(GGUFFile(path))


def test_without_a_template_there_is_no_chat(tiny: Both) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template: send a prompt"):
        tiny.tokenizer.render_chat([{"role": "user", "content": "hi"}])
