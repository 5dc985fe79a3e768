"""The tokenizer of a real Gemma 3: the ids that transformers makes of the same file."""

from __future__ import annotations

import pytest

from vidette.errors import ChatTemplateError
from vidette.models import ModelSource, load_token_table, load_tokenizer
from vidette.models.gguf import GGUFFile
from vidette.models.vocabulary import read_end_tokens, read_start_token

pytestmark = pytest.mark.long

# By AutoTokenizer of transformers 5.24 with gguf_file=, which takes half a minute; without the first token.
IDS = {
    "Hello, world!": [9259, 236764, 1902, 236888],
    "The capital of France is": [818, 5279, 529, 7001, 563],
    " leading and trailing ": [5830, 532, 45330, 236743],
    "a  b   c\n\n\nd\t\te\r\nf": [
        236746,
        138,
        236763,
        139,
        236755,
        109,
        236753,
        255969,
        236744,
        251,
        107,
        236760,
    ],
    "def f(x):\n    return {'a': [1, 2, 3]}  # 3.14159\n": [
        2063,
        517,
        236769,
        236781,
        1473,
        107,
        140,
        2060,
        16923,
        236746,
        2632,
        870,
        236770,
        236764,
        236743,
        236778,
        236764,
        236743,
        236800,
        21111,
        138,
        236865,
        236743,
        236800,
        236761,
        236770,
        236812,
        236770,
        236810,
        236819,
        107,
    ],
    "I'm sure they've said it's WE'LL": [
        236777,
        236789,
        236757,
        2889,
        901,
        236789,
        560,
        1176,
        625,
        236789,
        236751,
        19716,
        236789,
        2182,
    ],
    "Za\u017c\xf3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144, na\xefve caf\xe9, e\u0301": [
        236953,
        40512,
        24875,
        237289,
        549,
        237202,
        62081,
        237198,
        4828,
        238992,
        238041,
        236764,
        120362,
        33443,
        236764,
        545,
        238288,
    ],
    "日本語のテキスト、한국어": [94951, 236945, 95830, 236951, 114216, 237430],
    "العربية हिन्दी ไทย": [56734, 175899, 85394, 127604],
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U00040000": [
        242398,
        236743,
        243767,
        237243,
        243767,
        237243,
        244814,
        236743,
        246841,
        245562,
        236743,
        479,
        366,
        366,
        366,
    ],
    "\x00\x7f\xa0\u200b\ufeff": [238, 251541, 432, 398, 237141, 237922],
    "<start_of_turn>user\nHi<end_of_turn>\n<unused7><table>[multimodal]": [
        105,
        2364,
        107,
        10979,
        106,
        107,
        13,
        168,
        5,
    ],
    "<0x41> <bos": [236820, 236771, 236781, 236812, 236770, 236813, 655, 46757],
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx                               y": [
        130987,
        130987,
        130987,
        130987,
        130987,
        167,
        236762,
    ],
}


def test_ids_are_those_of_transformers(gemma_source: ModelSource) -> None:
    tokenizer, table = load_tokenizer(gemma_source), load_token_table(gemma_source)
    assert {text: tokenizer.encode(text).tolist() for text in IDS} == {
        text: [2, *ids] for text, ids in IDS.items()
    }
    for text, ids in IDS.items():
        assert b"".join(table.token_bytes[token_id] for token_id in ids).decode() == text
        assert tokenizer.fewest_tokens(text * 10, 1000) <= len(ids) * 10
    # As SentencePiece and llama.cpp do, the longest run of spaces comes first; transformers halves them.
    assert tokenizer.encode("a" + " " * 40 + "b").tolist() == [2, 236746, 167, 145, 236763]


def test_what_the_vocabulary_is(gemma_source: ModelSource) -> None:
    assert gemma_source.path is not None
    file, table = GGUFFile(gemma_source.path), load_token_table(gemma_source)
    assert len(table.token_bytes) == 262_144
    assert len(table.special) == 6249
    assert not table.space_prefix
    assert read_start_token(file) == 2
    assert {table.token_bytes[token_id] for token_id in read_end_tokens(file)} == {b"<eos>", b"<end_of_turn>"}


def test_a_base_model_has_no_chat(gemma_source: ModelSource) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template: send a prompt instead of messages"):
        load_tokenizer(gemma_source).render_chat([{"role": "user", "content": "Hi"}])
