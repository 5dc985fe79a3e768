"""One small case for each thing that a rule decides: what comes of a field, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import Struct

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    EmbeddingItem,
    EmbeddingReqInput,
    GenerateItem,
    GenerateReqInput,
    SamplingParams,
)
from vidette_protocol.messages.multimodal import PositionalEmbeds
from vidette_protocol.messages.sampling import MAX_SEED
from vidette_protocol.messages.sessions import SessionParams
from vidette_protocol.normalise import normalise_embedding, normalise_generate
from vidette_protocol.normalise.rules import EMBEDDING, GENERATE

LIMITS = Limits(
    rid_chars=8,
    text_chars=20,
    prompt_tokens=5,
    answers=8,
    n=4,
    name_chars=6,
    media=3,
    top_logprobs=5,
    token_ids_logprob=3,
    constraint_chars=20,
    stop_regex_chars=8,
)
OVERRIDES = PositionalEmbeds(embeds=np.zeros((1, 2), np.float32), positions=[0])
HERE = SessionParams(id="s", rid="r")


def generate(**fields: Any) -> tuple[GenerateItem, ...]:
    rids = iter(f"new{number}" for number in range(100))
    request = GenerateReqInput(**fields)
    return normalise_generate(request, new_rid=lambda: next(rids), limits=LIMITS, vocab_size=100).items


def embed(**fields: Any) -> tuple[EmbeddingItem, ...]:
    rids = iter(f"new{number}" for number in range(100))
    return normalise_embedding(EmbeddingReqInput(**fields), new_rid=lambda: next(rids), limits=LIMITS).items


def column(items: tuple[Struct, ...], field: str) -> list[Any]:
    return [msgspec.structs.asdict(item)[field] for item in items]


# --- the tables --------------------------------------------------------------------------------


def test_each_field_has_one_rule_and_no_rule_is_left_over() -> None:
    assert list(GENERATE) == list(GenerateReqInput.__struct_fields__)
    assert list(EMBEDDING) == list(EmbeddingReqInput.__struct_fields__)


@pytest.mark.parametrize(
    ("request_class", "item_class"), [(GenerateReqInput, GenerateItem), (EmbeddingReqInput, EmbeddingItem)]
)
def test_what_is_not_given_is_the_same_in_items(
    request_class: type[Struct], item_class: type[Struct]
) -> None:
    """A field that is left out takes no rule, so its default has to be that of the item."""
    given = {field.name: field.default for field in msgspec.structs.fields(request_class)}
    for field in msgspec.structs.fields(item_class):
        assert field.name == "rid" or field.default == given[field.name]


SINGLE: dict[str, Any] = {
    "rid": "r",
    "text": "t",
    "stream": True,
    "image_data": ["i"],
    "video_data": ["v"],
    "audio_data": ["a"],
    "mm_hashes": ["0f"],
    "modalities": ["video"],
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 2,
    "token_ids_logprob": [1],
    "return_text_in_logprobs": True,
    "log_metrics": False,
    "session_params": HERE,
    "lora_path": "l",
    "custom_logit_processor": "c",
    "positional_embed_overrides": OVERRIDES,
    "bootstrap_host": "h",
    "bootstrap_port": 1,
    "bootstrap_room": 2,
    "routed_dp_rank": 3,
    "routing_key": "k",
    "priority": 4,
    "extra_key": "e",
    "cache_salt": "s",
    "background": True,
}
"""A value of every field that is no default."""
OTHERS = {"session_id", "input_ids", "input_embeds"}
"""Fields that exclude some of them."""


def test_every_field_of_an_item_is_made() -> None:
    (item,) = generate(**SINGLE, sampling_params=SamplingParams(top_k=3))
    assert OTHERS | SINGLE.keys() | {"sampling_params"} == set(GenerateItem.__struct_fields__)
    made = msgspec.structs.asdict(item)
    for field in msgspec.structs.fields(GenerateItem):
        assert field.name in OTHERS or made[field.name] != field.default
    (item,) = generate(input_ids=[1], session_id="s")
    assert (item.input_ids, item.session_id) == ((1,), "s")
    assert generate(input_embeds=[[0.5]])[0].input_embeds == ((0.5,),)


def test_every_field_of_an_embedding_item_is_made() -> None:
    fields = set(EmbeddingItem.__struct_fields__)
    own = {"is_cross_encoder_request": True, "dimensions": 2, "text": ["a", "b"]}
    (item,) = embed(**{**{name: value for name, value in SINGLE.items() if name in fields}, **own})
    made = msgspec.structs.asdict(item)
    for field in msgspec.structs.fields(EmbeddingItem):
        assert field.name == "input_ids" or made[field.name] != field.default


# --- what is accepted ----------------------------------------------------------------------------

TWO: dict[str, Any] = {"text": ["a", "b"]}
BOTH: dict[str, Any] = {"text": ["a", "b"], "sampling_params": SamplingParams(n=2)}
PAIR: dict[str, Any] = {"text": "a", "sampling_params": SamplingParams(n=2)}

ACCEPTED: list[tuple[dict[str, Any], str, list[Any]]] = [
    # prompts
    ({"text": "a"}, "text", ["a"]),
    ({"text": ("a", "b")}, "text", ["a", "b"]),
    ({"text": np.str_("a")}, "text", ["a"]),
    (BOTH, "text", ["a", "a", "b", "b"]),
    ({"input_ids": [1, 2]}, "input_ids", [(1, 2)]),
    ({"input_ids": [[1, 2], [3]]}, "input_ids", [(1, 2), (3,)]),
    ({"input_ids": [[1]]}, "input_ids", [(1,)]),
    ({"input_ids": [1] * 5}, "input_ids", [(1,) * 5]),
    ({"input_ids": [-1, 1 << 70]}, "input_ids", [(-1, 1 << 70)]),  # the vocabulary is known elsewhere
    ({"input_embeds": [[1, 2.5], [3, 4]]}, "input_embeds", [((1.0, 2.5), (3.0, 4.0))]),
    ({"input_embeds": [[[1.0]], [[2.0]]]}, "input_embeds", [((1.0,),), ((2.0,),)]),
    # rids
    ({"text": "a"}, "rid", ["new0"]),
    (BOTH, "rid", ["new0", "new1", "new2", "new3"]),
    ({"text": "a", "rid": "r"}, "rid", ["r"]),
    ({"text": "a", "rid": ["r"]}, "rid", ["r"]),
    ({"text": ["a"], "rid": "r"}, "rid", ["r_0"]),
    ({**TWO, "rid": "r"}, "rid", ["r_0", "r_1"]),
    ({**PAIR, "rid": "r"}, "rid", ["r_0", "r_1"]),
    ({**TWO, "rid": ["r", "s"]}, "rid", ["r", "s"]),
    ({**BOTH, "rid": ["r", "s"]}, "rid", ["r_0", "r_1", "s_0", "s_1"]),
    ({"text": "a", "rid": "12345678"}, "rid", ["12345678"]),
    ({**TWO, "rid": "123456"}, "rid", ["123456_0", "123456_1"]),
    # one for all, or one for each prompt
    ({**TWO, "stream": True}, "stream", [True, True]),
    ({**TWO, "stream": None}, "stream", [False, False]),
    ({**TWO, "log_metrics": False}, "log_metrics", [False, False]),
    ({**TWO, "background": True}, "background", [True, True]),
    ({**TWO, "routing_key": "k"}, "routing_key", ["k", "k"]),
    ({**TWO, "return_logprob": True}, "return_logprob", [True, True]),
    ({**BOTH, "return_logprob": [True, False]}, "return_logprob", [True, True, False, False]),
    ({**BOTH, "logprob_start_len": [-1, 5]}, "logprob_start_len", [-1, -1, 5, 5]),
    ({**BOTH, "top_logprobs_num": [0, 5]}, "top_logprobs_num", [0, 0, 5, 5]),
    ({**BOTH, "lora_path": ["l", None]}, "lora_path", ["l", "l", None, None]),
    ({**TWO, "lora_path": "l"}, "lora_path", ["l", "l"]),
    ({**BOTH, "custom_logit_processor": [None, "c"]}, "custom_logit_processor", [None, None, "c", "c"]),
    ({**TWO, "priority": [None, -(1 << 31)]}, "priority", [None, -(1 << 31)]),
    ({**TWO, "bootstrap_host": "h"}, "bootstrap_host", ["h", "h"]),
    ({**TWO, "bootstrap_port": [1, 65535]}, "bootstrap_port", [1, 65535]),
    (
        {**TWO, "positional_embed_overrides": [None, OVERRIDES]},
        "positional_embed_overrides",
        [None, OVERRIDES],
    ),
    ({**TWO, "extra_key": ""}, "extra_key", [None, None]),
    ({**TWO, "extra_key": ["", "k"]}, "extra_key", [None, "k"]),
    ({**TWO, "cache_salt": "s"}, "cache_salt", ["s", "s"]),
    # token ids to report
    ({**TWO, "token_ids_logprob": 7}, "token_ids_logprob", [(7,), (7,)]),
    ({**TWO, "token_ids_logprob": [7, 8, 9]}, "token_ids_logprob", [(7, 8, 9), (7, 8, 9)]),
    ({**TWO, "token_ids_logprob": []}, "token_ids_logprob", [None, None]),
    ({**BOTH, "token_ids_logprob": [[7], None]}, "token_ids_logprob", [(7,), (7,), None, None]),
    ({**TWO, "token_ids_logprob": [None, []]}, "token_ids_logprob", [None, None]),
    ({"text": "a", "token_ids_logprob": [[7]]}, "token_ids_logprob", [(7,)]),
    # media
    ({"text": "a", "image_data": "i"}, "image_data", [("i",)]),
    ({"text": "a", "image_data": [b"i", {"k": 1}]}, "image_data", [(b"i", {"k": 1})]),
    ({"text": "a", "image_data": []}, "image_data", [None]),
    ({**TWO, "image_data": "i"}, "image_data", [("i",), ("i",)]),
    ({**TWO, "image_data": ["i", None]}, "image_data", [("i",), None]),
    ({**TWO, "image_data": ["i", ["j", "k"]]}, "image_data", [("i",), ("j", "k")]),
    ({**TWO, "image_data": [["i"], []]}, "image_data", [("i",), None]),
    ({"text": ["a"], "image_data": ["i"]}, "image_data", [("i",)]),
    ({**BOTH, "video_data": ["v", None]}, "video_data", [("v",), ("v",), None, None]),
    ({"text": "a", "audio_data": ["x", "y"]}, "audio_data", [("x", "y")]),
    ({"text": "a", "image_data": "i"}, "modalities", ["image"]),
    ({"text": "a", "image_data": ["i", "j"]}, "modalities", ["multi-images"]),
    ({"text": "a", "image_data": []}, "modalities", [None]),
    ({**TWO, "image_data": [None, ["i", "j"]]}, "modalities", [None, "multi-images"]),
    ({**TWO, "image_data": "i", "modalities": "video"}, "modalities", ["video", "video"]),
    ({**TWO, "image_data": ["i", None], "modalities": ["video", None]}, "modalities", ["video", None]),
    ({**TWO, "image_data": ["i", "j"], "modalities": [None, "video"]}, "modalities", ["image", "video"]),
    ({"text": "a", "image_data": ["i", "j"], "mm_hashes": ["0F", "a1"]}, "mm_hashes", [("0F", "a1")]),
    (
        {**TWO, "image_data": ["i", ["j", "k"]], "mm_hashes": ["0", ["1", "2"]]},
        "mm_hashes",
        [("0",), ("1", "2")],
    ),
    ({**TWO, "image_data": ["i", None], "mm_hashes": [None, []]}, "mm_hashes", [None, None]),
    # rooms
    ({"text": "a", "bootstrap_room": 5}, "bootstrap_room", [5]),
    ({**BOTH, "bootstrap_room": 5}, "bootstrap_room", [5, 6, 7, 8]),
    ({**TWO, "bootstrap_room": [9, 5]}, "bootstrap_room", [9, 5]),
    ({**BOTH, "bootstrap_room": [5, 7]}, "bootstrap_room", [5, 6, 7, 8]),
    # ranks
    ({"text": "a", "routed_dp_rank": 0}, "routed_dp_rank", [0]),
    ({"text": "a", "data_parallel_rank": 3}, "routed_dp_rank", [3]),
    ({"text": "a", "data_parallel_rank": 3, "routed_dp_rank": 3}, "routed_dp_rank", [3]),
    # sessions
    ({**TWO, "session_params": HERE}, "session_params", [HERE, HERE]),
    ({"text": "a", "session_params": {"id": "s", "rid": "r", "replace": None}}, "session_params", [HERE]),
    ({"text": "a", "session_params": {}, "session_id": "s"}, "session_params", [None]),
    ({**TWO, "session_id": "s"}, "session_id", ["s", "s"]),
]


def named(cases: list[Any]) -> list[str]:
    return [f"{number}-{case[1]}" for number, case in enumerate(cases)]


@pytest.mark.parametrize(("fields", "field", "expected"), ACCEPTED, ids=named(ACCEPTED))
def test_each_item_has_what_is_its_own(fields: dict[str, Any], field: str, expected: list[Any]) -> None:
    made = column(generate(**fields), field)
    assert made == expected
    assert [type(value) for value in made] == [type(value) for value in expected]


SAMPLING: list[tuple[dict[str, Any], str, list[Any]]] = [
    ({"text": "a", "sampling_params": None}, "temperature", [1.0]),
    ({"text": "a", "sampling_params": {"top_k": 5, "temperature": None}}, "top_k", [5]),
    ({"text": "a", "sampling_params": {"max_new_tokens": None}}, "max_new_tokens", [None]),
    ({"text": "a", "sampling_params": {"logit_bias": {"7": 1}}}, "logit_bias", [{7: 1.0}]),
    ({"text": "a", "sampling_params": [{"top_k": 5}]}, "top_k", [5]),
    ({**TWO, "sampling_params": [SamplingParams(top_k=5), {"top_k": 6}]}, "top_k", [5, 6]),
    ({**TWO, "sampling_params": [{"n": 2, "top_k": 5}, {"n": 2}]}, "top_k", [5, 5, -1, -1]),
    (BOTH, "n", [1, 1, 1, 1]),
    (BOTH, "sampling_seed", [None] * 4),
    ({**TWO, "sampling_params": {"n": 2, "sampling_seed": 5}}, "sampling_seed", [5, 6, 5, 6]),
    ({"text": "a", "sampling_params": {"n": 2, "sampling_seed": MAX_SEED}}, "sampling_seed", [MAX_SEED, 0]),
    ({"text": "a", "sampling_params": {"stop": "x"}}, "stop", [["x"]]),
    ({"text": "a", "sampling_params": {"stop": []}}, "stop", [None]),
    ({"text": "a", "regex": "x"}, "regex", ["x"]),
    ({"text": "a", "json_schema": "{}"}, "json_schema", ["{}"]),
    ({"text": "a", "grammar": "g"}, "ebnf", ["g"]),
    ({**BOTH, "regex": ["x", None]}, "regex", ["x", "x", None, None]),
    ({"text": "a", "regex": "x", "sampling_params": {"regex": "x"}}, "regex", ["x"]),
    ({**TWO, "regex": ["x", None], "sampling_params": [{}, {"regex": "y"}]}, "regex", ["x", "y"]),
    ({**TWO, "regex": [None, "x"], "json_schema": ["{}", None]}, "regex", [None, "x"]),
    ({"text": "a", "no_stop_trim": True}, "no_stop_trim", [True]),
    ({**TWO, "no_stop_trim": [False, True]}, "no_stop_trim", [False, True]),
    ({"text": "a", "no_stop_trim": False, "sampling_params": {"no_stop_trim": True}}, "no_stop_trim", [True]),
]


@pytest.mark.parametrize(("fields", "field", "expected"), SAMPLING, ids=named(SAMPLING))
def test_each_item_has_its_own_sampling(fields: dict[str, Any], field: str, expected: list[Any]) -> None:
    items = generate(**fields)
    assert [msgspec.structs.asdict(item.sampling_params)[field] for item in items] == expected


EMBEDDED: list[tuple[dict[str, Any], str, list[Any]]] = [
    (TWO, "text", ["a", "b"]),
    ({"text": ["a", "b"], "is_cross_encoder_request": True}, "text", [("a", "b")]),
    ({"text": [["a", "b"], ("c", "d")], "is_cross_encoder_request": True}, "text", [("a", "b"), ("c", "d")]),
    ({"input_ids": [[1], [2]]}, "input_ids", [(1,), (2,)]),
    ({"image_data": ["i", "j"]}, "image_data", [("i", "j")]),
    ({"audio_data": "x", "image_data": []}, "audio_data", [("x",)]),
    ({"video_data": b"x"}, "video_data", [(b"x",)]),
    ({"image_data": ["i", "j"]}, "modalities", ["multi-images"]),
    ({**TWO, "rid": "r"}, "rid", ["r_0", "r_1"]),
    ({**TWO, "rid": ["r", "s"]}, "rid", ["r", "s"]),
    ({**TWO, "sampling_params": {"max_new_tokens": 3}}, "dimensions", [None, None]),
    ({**TWO, "dimensions": 3}, "dimensions", [3, 3]),
    ({**TWO, "lora_path": [None, "l"], "priority": 1}, "lora_path", [None, "l"]),
]


@pytest.mark.parametrize(("fields", "field", "expected"), EMBEDDED, ids=named(EMBEDDED))
def test_each_embedding_has_what_is_its_own(fields: dict[str, Any], field: str, expected: list[Any]) -> None:
    assert column(embed(**fields), field) == expected


# --- what is not ---------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # prompts
    ({}, "text", "no prompt is given; give just one of text, input_ids and input_embeds"),
    (
        {"text": "a", "input_ids": [1]},
        "text",
        "text and input_ids are both given; give just one of text, input_ids and input_embeds",
    ),
    (
        {"text": "a", "input_ids": [], "input_embeds": []},
        "text",
        "text and input_ids are both given; give just one of text, input_ids and input_embeds",
    ),
    ({"text": ""}, "text", "text is empty; a prompt has at least one token"),
    ({"text": []}, "text", "text is an empty list; give at least one prompt"),
    ({"text": ["a", ""]}, "text[1]", "text[1] is empty; a prompt has at least one token"),
    ({"text": ["a", None]}, "text[1]", "text[1] is None; it must be a text"),
    ({"text": 5}, "text", "text is 5; it must be a text"),
    ({"text": "x" * 21}, "text", "text has 21 characters; at most 20 are accepted"),
    ({"text": "a\ud800"}, "text", r"text has '\ud800' at 1, half a surrogate pair"),
    ({"text": ["a"] * 9}, "text", "text has 9 prompts; at most 8 are accepted"),
    ({"input_ids": []}, "input_ids", "input_ids is empty; a prompt has at least one token"),
    ({"input_ids": [[1], []]}, "input_ids[1]", "input_ids[1] is empty; a prompt has at least one token"),
    ({"input_ids": [[1], 2]}, "input_ids[1]", "input_ids[1] is 2; it must be a list of token ids"),
    ({"input_ids": [1, [2]]}, "input_ids[1]", "input_ids[1] is a list of 1; a token id is an integer"),
    ({"input_ids": [1, True]}, "input_ids[1]", "input_ids[1] is True; a token id is an integer"),
    ({"input_ids": ["\ud800"]}, "input_ids[0]", r"input_ids[0] is '\ud800'; a token id is an integer"),
    ({"input_ids": "a"}, "input_ids", "input_ids is 'a'; it must be a list of token ids"),
    ({"input_ids": [1] * 6}, "input_ids", "the prompt is too long: it has 6 tokens; at most 5 fit"),
    ({"input_ids": [[1]] * 9}, "input_ids", "input_ids has 9 prompts; at most 8 are accepted"),
    ({"input_embeds": []}, "input_embeds", "input_embeds is empty; a prompt has at least one token"),
    (
        {"input_embeds": [[]]},
        "input_embeds[0]",
        "input_embeds[0] is a list of 0; all rows must be lists of numbers, of one length",
    ),
    (
        {"input_embeds": [[1.0], [1.0, 2.0]]},
        "input_embeds[1]",
        "input_embeds[1] is a list of 2; all rows must be lists of numbers, of one length",
    ),
    (
        {"input_embeds": [1.0]},
        "input_embeds[0]",
        "input_embeds[0] is 1.0; all rows must be lists of numbers, of one length",
    ),
    (
        {"input_embeds": [[1.0, None]]},
        "input_embeds[0][1]",
        "input_embeds[0][1] is not valid: expected `float`, got `null`",
    ),
    (
        {"input_embeds": [["\ud800"]]},
        "input_embeds",
        "input_embeds is not valid: a text with half a surrogate pair",
    ),
    # how many answers
    (
        {**TWO, "sampling_params": [{}]},
        "sampling_params",
        "sampling_params is a list of 1, but there are 2 prompts",
    ),
    (
        {**TWO, "sampling_params": []},
        "sampling_params",
        "sampling_params is a list of 0, but there are 2 prompts",
    ),
    (
        {"text": "a", "sampling_params": [{}] * 2},
        "sampling_params",
        "sampling_params is a list of 2, but there is 1 prompt",
    ),
    ({"text": "a", "sampling_params": {"n": 0}}, "n", "n is 0; it must be from 1 to 4"),
    ({"text": "a", "sampling_params": {"n": 5}}, "n", "n is 5; it must be from 1 to 4"),
    (
        {**TWO, "sampling_params": [{"n": 1}, {"n": 2}]},
        "sampling_params[1].n",
        "sampling_params[1].n is 2, but the first is 1; it is the same for all prompts",
    ),
    (
        {"text": ["a"] * 3, "sampling_params": {"n": 3}},
        "n",
        "n is 3, and 3 prompts have 9 answers altogether; at most 8 are accepted",
    ),
    # sampling parameters
    (
        {"text": "a", "sampling_params": 5},
        "sampling_params",
        "sampling_params is 5; it must be a SamplingParams or a dict",
    ),
    (
        {"text": "a", "sampling_params": {"top_p": 0}},
        "top_p",
        "top_p is 0.0; it must be greater than 0 and at most 1",
    ),
    (
        {**TWO, "sampling_params": [{}, {"top_k": 0}]},
        "sampling_params[1].top_k",
        "sampling_params[1].top_k is 0; it must be -1 (all tokens) or at least 1",
    ),
    (
        {"text": "a", "sampling_params": {"top_k": "x"}},
        "top_k",
        "sampling_params.top_k is not valid: expected `int`, got `str`",
    ),
    (
        {**TWO, "sampling_params": [{}, SamplingParams(top_k=1.5)]},  # type: ignore[arg-type]
        "sampling_params[1].top_k",
        "sampling_params[1].top_k is not valid: expected `int`, got `float`",
    ),
    (
        {"text": "a", "sampling_params": {"logit_bias": {"x": 1}}},
        "logit_bias",
        "sampling_params.logit_bias is not valid: expected `int`, got `str` as a key",
    ),
    (
        {"text": "a", "sampling_params": {"logit_bias": {"100": 1}}},
        "logit_bias",
        "logit_bias has the token 100; token ids are 0 to 99",
    ),
    (
        {"text": "a", "sampling_params": {"top_k": "\ud800"}},
        "sampling_params",
        "sampling_params is not valid: a text with half a surrogate pair",
    ),
    (
        {"text": "a", "sampling_params": {"stop": [""]}},
        "stop[0]",
        "stop[0] has 0 characters; it must have 1 to 1024",
    ),
    (
        {**TWO, "sampling_params": [{"stop_regex": "aaaaa"}, {"stop_regex": ["bbbbb"]}]},
        "stop_regex",
        "stop_regex has 10 characters altogether; at most 8 are accepted",
    ),
    # constraints
    ({"text": "a", "regex": ""}, "regex", "regex has 0 characters; it must have 1 to 20"),
    ({"text": "a", "regex": 5}, "regex", "regex is 5; it must be a text"),
    ({**TWO, "regex": ["a"]}, "regex", "regex is a list of 1, but there are 2 prompts"),
    (
        {**TWO, "json_schema": ["{}", "{"]},
        "json_schema[1]",
        "json_schema[1] is '{', which is not JSON: Input data was truncated",
    ),
    (
        {"text": "a", "regex": "x", "sampling_params": {"regex": "y"}},
        "regex",
        "regex is 'x', but sampling_params.regex is 'y'; give it in one place",
    ),
    (
        {"text": "a", "grammar": "x", "sampling_params": {"ebnf": "y"}},
        "grammar",
        "grammar is 'x', but sampling_params.ebnf is 'y'; give it in one place",
    ),
    (
        {"text": "a", "grammar": "x", "sampling_params": {"regex": "y"}},
        "regex",
        "regex and ebnf are both given; an output has one constraint at most",
    ),
    (
        {**TWO, "regex": [None, "x"], "json_schema": [None, "{}"]},
        "json_schema",
        "json_schema and regex are both given; an output has one constraint at most",
    ),
    ({"text": "a", "no_stop_trim": 1}, "no_stop_trim", "no_stop_trim is 1; it must be true or false"),
    # rids
    ({"text": "a", "rid": ""}, "rid", "rid has 0 characters; it must have 1 to 8"),
    ({"text": "a", "rid": "123456789"}, "rid", "rid has 9 characters; it must have 1 to 8"),
    ({"text": "a", "rid": "\ud800"}, "rid", r"rid has '\ud800' at 0, half a surrogate pair"),
    ({"text": "a", "rid": 5}, "rid", "rid is 5; it must be a text"),
    ({"text": "a", "rid": ["a", "b"]}, "rid", "rid is a list of 2, but there is 1 prompt"),
    ({**TWO, "rid": "1234567"}, "rid", "rid has 7 characters; it must have 1 to 6, to be a prefix"),
    ({**TWO, "rid": ["r", "r"]}, "rid", "rid has 'r' more than once; each answer has its own"),
    ({**BOTH, "rid": ["r", "r"]}, "rid", "rid has 'r_0', 'r_1' more than once; each answer has its own"),
    ({"text": ["a"] * 3, "rid": ["r", None, "s"]}, "rid[1]", "rid[1] is None; it must be a text"),
    (
        {"text": ["a"] * 8, "rid": list("abcdabcd")[:4] * 2},
        "rid",
        "rid has 'a', 'b', 'c', 'd' more than once; each answer has its own",
    ),
    # one for all
    ({"text": "a", "stream": 1}, "stream", "stream is 1; it must be true or false"),
    ({"text": "a", "stream": [True]}, "stream", "stream is a list of 1; it must be true or false"),
    (
        {"text": "a", "routing_key": "1234567"},
        "routing_key",
        "routing_key has 7 characters; it must have 1 to 6",
    ),
    # one for all, or one for each prompt
    (
        {**TWO, "return_logprob": [True]},
        "return_logprob",
        "return_logprob is a list of 1, but there are 2 prompts",
    ),
    (
        {**TWO, "return_logprob": [True, None]},
        "return_logprob[1]",
        "return_logprob[1] is None; it must be true or false",
    ),
    (
        {"text": "a", "logprob_start_len": -2},
        "logprob_start_len",
        "logprob_start_len is -2; it must be an integer from -1 to 2147483647",
    ),
    (
        {"text": "a", "top_logprobs_num": 6},
        "top_logprobs_num",
        "top_logprobs_num is 6; it must be an integer from 0 to 5",
    ),
    (
        {"text": "a", "top_logprobs_num": True},
        "top_logprobs_num",
        "top_logprobs_num is True; it must be an integer from 0 to 5",
    ),
    ({"text": "a", "lora_path": ""}, "lora_path", "lora_path has 0 characters; it must have 1 to 6"),
    (
        {"text": "a", "priority": 1 << 31},
        "priority",
        "priority is 2147483648; it must be an integer from -2147483648 to 2147483647",
    ),
    (
        {"text": "a", "bootstrap_port": 0},
        "bootstrap_port",
        "bootstrap_port is 0; it must be an integer from 1 to 65535",
    ),
    ({**TWO, "extra_key": ["k", None]}, "extra_key[1]", "extra_key[1] is None; it must be a text"),
    ({"text": "a", "extra_key": b""}, "extra_key", "extra_key is of type bytes; it must be a text"),
    (
        {"text": "a", "positional_embed_overrides": {}},
        "positional_embed_overrides",
        "positional_embed_overrides is of type dict; it must be PositionalEmbeds",
    ),
    # token ids to report
    (
        {"text": "a", "token_ids_logprob": 100},
        "token_ids_logprob[0]",
        "token_ids_logprob[0] is 100; token ids are 0 to 99",
    ),
    (
        {"text": "a", "token_ids_logprob": [1, 2, 1]},
        "token_ids_logprob",
        "token_ids_logprob has 1 twice",
    ),
    (
        {"text": "a", "token_ids_logprob": "x"},
        "token_ids_logprob[0]",
        "token_ids_logprob[0] is 'x'; a token id is an integer",
    ),
    (
        {"text": "a", "token_ids_logprob": [1, [2]]},
        "token_ids_logprob[1]",
        "token_ids_logprob[1] is a list of 1; a token id is an integer",
    ),
    (
        {**TWO, "token_ids_logprob": [[1], 2]},
        "token_ids_logprob[1]",
        "token_ids_logprob[1] is 2; it must be a list of token ids",
    ),
    (
        {**TWO, "token_ids_logprob": [[1]]},
        "token_ids_logprob",
        "token_ids_logprob is a list of 1, but there are 2 prompts",
    ),
    (
        {"text": "a", "token_ids_logprob": [1] * 4},
        "token_ids_logprob",
        "token_ids_logprob has 4 items; at most 3 are accepted",
    ),
    # media
    (
        {"text": "a", "image_data": ""},
        "image_data",
        "image_data is ''; it must be an address, base64 text, bytes, or what a loader takes",
    ),
    (
        {"text": "a", "image_data": [["i"]]},
        "image_data[0]",
        "image_data[0] is a list of 1; it must be an address, base64 text, bytes, or what a loader takes",
    ),
    (
        {"text": "a", "image_data": [None]},
        "image_data[0]",
        "image_data[0] is None; it must be an address, base64 text, bytes, or what a loader takes",
    ),
    ({"text": "a", "image_data": ["i"] * 4}, "image_data", "image_data has 4 items; at most 3 are accepted"),
    ({**TWO, "image_data": ["i"]}, "image_data", "image_data is a list of 1, but there are 2 prompts"),
    ({**TWO, "video_data": []}, "video_data", "video_data is a list of 0, but there are 2 prompts"),
    (
        {"text": "a", "modalities": "image"},
        "modalities[0]",
        "modalities[0] is 'image', but there are no images",
    ),
    (
        {"text": "a", "image_data": "i", "modalities": "x"},
        "modalities",
        "modalities is 'x'; it must be one of image, multi-images, video",
    ),
    (
        {"text": "a", "image_data": "i", "modalities": 5},
        "modalities",
        "modalities is 5; it must be one of image, multi-images, video",
    ),
    (
        {"text": "a", "image_data": "i", "mm_hashes": "0f"},
        "mm_hashes",
        "mm_hashes is '0f'; it must be a list",
    ),
    (
        {"text": "a", "image_data": "i", "mm_hashes": ["0", "1"]},
        "mm_hashes",
        "mm_hashes has 2 hashes, but there are 1 images",
    ),
    ({"text": "a", "mm_hashes": ["0"]}, "mm_hashes", "mm_hashes has 1 hashes, but there are 0 images"),
    (
        {"text": "a", "image_data": "i", "mm_hashes": ["0x"]},
        "mm_hashes",
        "mm_hashes is '0x'; it must be 1 to 128 hexadecimal digits",
    ),
    (
        {**TWO, "image_data": "i", "mm_hashes": ["0"]},
        "mm_hashes",
        "mm_hashes is a list of 1, but there are 2 prompts",
    ),
    # rooms and ranks
    (
        {"text": "a", "bootstrap_room": -1},
        "bootstrap_room",
        f"bootstrap_room is -1; it must be an integer from 0 to {(1 << 63) - 9}",
    ),
    (
        {**BOTH, "bootstrap_room": [5, 6]},
        "bootstrap_room",
        "bootstrap_room gives 4 answers 3 rooms; each needs one of its own",
    ),
    (
        {**TWO, "bootstrap_room": [5]},
        "bootstrap_room",
        "bootstrap_room is a list of 1, but there are 2 prompts",
    ),
    (
        {"text": "a", "routed_dp_rank": 1, "data_parallel_rank": 2},
        "data_parallel_rank",
        "data_parallel_rank is 2, but routed_dp_rank, its newer name, is 1; give one of them",
    ),
    # sessions
    (
        {"text": "a", "session_params": HERE, "session_id": "s"},
        "session_id",
        "session_id is 's', and session_params are given; give one of them",
    ),
    (
        {"text": "a", "session_params": {"rid": "r"}},
        "session_params.id",
        "session_params.id is missing; the others of session_params say nothing without it",
    ),
    (
        {"text": "a", "session_params": {"id": ""}},
        "session_params.id",
        "session_params.id has 0 characters; it must have 1 to 8",
    ),
    (
        {"text": "a", "session_params": {"id": "s", "rid": "\ud800"}},
        "session_params.rid",
        r"session_params.rid has '\ud800' at 0, half a surrogate pair",
    ),
    (
        {"text": "a", "session_params": {"id": "s", "offset": -1}},
        "session_params.offset",
        "session_params.offset is not valid: expected `int` >= 0",
    ),
    (
        {"text": "a", "session_params": "s"},
        "session_params",
        "session_params is 's'; it must be a SessionParams or a dict",
    ),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=named(REFUSED))
def test_what_cannot_be_honoured_is_named_with_its_value(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        generate(**fields)
    assert str(caught.value) == message
    assert caught.value.param == param


PAIRS = {"is_cross_encoder_request": True}
NOT_EMBEDDED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "text", "nothing is given of text, input_ids and media; give one of them"),
    (
        {"image_data": [], "priority": 1},
        "text",
        "nothing is given of text, input_ids and media; give one of them",
    ),
    ({"image_data": "i", **PAIRS}, "text", "nothing is given of text, input_ids and media; give one of them"),
    (
        {"text": "a", "input_ids": [1]},
        "text",
        "text and input_ids are both given; give just one of text and input_ids",
    ),
    ({"text": [["a", "b"]]}, "text[0]", "text[0] is a list of 2; it must be a text"),
    ({"text": "a", **PAIRS}, "text", "text is 'a'; for a cross-encoder it must be a pair of texts"),
    ({"text": ["a"], **PAIRS}, "text", "text is a list of 1; for a cross-encoder it must be a pair of texts"),
    (
        {"text": [["a", "b"], "c"], **PAIRS},
        "text[1]",
        "text[1] is 'c'; for a cross-encoder it must be a pair of texts",
    ),
    ({"text": ["a", ""], **PAIRS}, "text[1]", "text[1] is empty; a prompt has at least one token"),
    (
        {"input_ids": [1], **PAIRS},
        "input_ids",
        "input_ids cannot be given for a cross-encoder; give text, a pair or a list of pairs",
    ),
    (
        {"text": "a", "is_cross_encoder_request": 1},
        "is_cross_encoder_request",
        "is_cross_encoder_request is 1; it must be true or false",
    ),
    ({**TWO, "rid": ["r"]}, "rid", "rid is a list of 1, but there are 2 prompts"),
    ({**TWO, "rid": ["r", "r"]}, "rid", "rid has 'r' more than once; each answer has its own"),
    (
        {"text": "a", "dimensions": 0},
        "dimensions",
        "dimensions is 0; it must be an integer from 1 to 2147483647",
    ),
    ({"text": "a", "sampling_params": 5}, "sampling_params", "sampling_params is 5; it must be an object"),
    ({"text": ["a"] * 9}, "text", "text has 9 prompts; at most 8 are accepted"),
]


@pytest.mark.parametrize(("fields", "param", "message"), NOT_EMBEDDED, ids=named(NOT_EMBEDDED))
def test_what_cannot_be_embedded_is_named_with_its_value(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        embed(**fields)
    assert str(caught.value) == message
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"text": "x" * 21}, {"input_ids": [1] * 6}])
def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        generate(**fields)
    assert caught.value.code == "context_length_exceeded"


def test_a_field_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput) as caught:
        generate(text="a", sampling_params={"temprature": 1})
    assert str(caught.value).startswith(
        "there is no field 'temprature' in sampling_params; the fields are max_new"
    )
    assert (caught.value.param, caught.value.code) == ("sampling_params.temprature", "unknown_field")


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput, match=r"^custom_params of 'x' holds a list of 1; "):
        generate(text="a", sampling_params={"custom_params": {"x": deep}})
