"""Each field of a request is supported, or refused unless it asks for nothing; none is ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from vidette.errors import UsageError
from vidette.front.support import REFUSED, SAMPLING_REFUSED, check_supported
from vidette_protocol.limits import Limits
from vidette_protocol.messages import GenerateItem, GenerateReqInput, SamplingParams
from vidette_protocol.messages.multimodal import PositionalEmbeds
from vidette_protocol.normalise import normalise_generate

SUPPORTED = {
    *("rid", "text", "input_ids", "sampling_params", "stream", "no_stop_trim", "session_params"),
    *("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"),
    *("return_text_in_logprobs", "priority", "routing_key", "extra_key", "cache_salt", "log_metrics"),
}
SAMPLING_SUPPORTED = {
    *("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "sampling_seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
    *("stop", "stop_token_ids", "stop_regex", "ignore_eos", "no_stop_trim", "stream_interval"),
    *("skip_special_tokens", "spaces_between_special_tokens"),
}


def check(**fields: Any) -> GenerateItem:
    request = GenerateReqInput(**{"text": "x", **fields})
    return check_supported(normalise_generate(request, new_rid=lambda: "new", limits=Limits()))


ASKING: dict[str, Any] = {
    "audio_data": "a",
    "background": True,
    "bootstrap_host": "h",
    "bootstrap_port": 1,
    "bootstrap_room": 0,
    "custom_logit_processor": "c",
    "data_parallel_rank": 0,
    "grammar": "g",
    "image_data": ["i"],
    "input_embeds": [[0.0]],
    "json_schema": "{}",
    "lora_path": "l",
    "mm_hashes": ["0"],
    "modalities": "image",
    "positional_embed_overrides": PositionalEmbeds(embeds=np.zeros((1, 2)), positions=[0]),
    "regex": "r",
    "routed_dp_rank": 0,
    "session_id": "s",
    "video_data": b"v",
}
"""A value of each refused field that asks for something."""
SAMPLING_ASKING: dict[str, Any] = {
    "custom_params": {"a": 1},
    "ebnf": "g",
    "json_schema": "{}",
    "n": 2,
    "regex": "r",
    "structural_tag": "{}",
}


def test_each_field_is_supported_or_refused() -> None:
    assert SUPPORTED | REFUSED.keys() == set(GenerateReqInput.__struct_fields__)
    assert SAMPLING_SUPPORTED | SAMPLING_REFUSED.keys() == set(SamplingParams.__struct_fields__)
    assert not SUPPORTED & REFUSED.keys()
    assert not SAMPLING_SUPPORTED & SAMPLING_REFUSED.keys()
    assert ASKING.keys() == REFUSED.keys()
    assert SAMPLING_ASKING.keys() == SAMPLING_REFUSED.keys()


NAMED_OTHERWISE = {
    "data_parallel_rank": "routed_dp_rank",
    "grammar": "ebnf",
    "mm_hashes": "image_data",
    "modalities": "image_data",
}
"""Fields that others stand for by the time they are looked at."""


@pytest.mark.parametrize("field", ASKING)
def test_what_asks_for_something_is_refused_by_name(field: str) -> None:
    fields = {field: ASKING[field]}
    if field in {"mm_hashes", "modalities"}:  # which say something of images
        fields["image_data"] = ["i"]
    if field == "input_embeds":
        fields["text"] = None
    with pytest.raises(UsageError, match=" is not supported yet") as caught:
        check(**fields)
    assert caught.value.param == NAMED_OTHERWISE.get(field, field)
    assert caught.value.code == "unsupported_field"


@pytest.mark.parametrize("field", SAMPLING_ASKING)
def test_sampling_that_asks_for_something_is_refused_by_name(field: str) -> None:
    with pytest.raises(UsageError, match=f"^{field} is not supported yet") as caught:
        check(sampling_params=SamplingParams(**{field: SAMPLING_ASKING[field]}))
    assert caught.value.param == field
    assert caught.value.code == "unsupported_field"


def test_the_message_says_what_is_accepted() -> None:
    with pytest.raises(UsageError, match=r"^background is not supported yet; only false is accepted$"):
        check(background=True)
    with pytest.raises(UsageError, match=r"^lora_path is not supported yet$"):
        check(lora_path="l")


@pytest.mark.parametrize("field", REFUSED)
def test_what_asks_for_nothing_is_accepted(field: str) -> None:
    for value in (None, *REFUSED[field]):
        assert check(**{field: value}).text == "x"


@pytest.mark.parametrize("field", SAMPLING_REFUSED)
def test_sampling_that_asks_for_nothing_is_accepted(field: str) -> None:
    defaults = msgspec.structs.asdict(SamplingParams())
    for value in (defaults[field], *SAMPLING_REFUSED[field]):
        assert check(sampling_params={field: value}).text == "x"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": ["x", "y"]}, "text"),
        ({"text": ["x"]}, "text"),
        ({"text": None, "input_ids": [[1], [2]]}, "input_ids"),
        ({"text": None, "input_embeds": [[[0.5]]]}, "input_embeds"),
    ],
)
def test_a_list_of_prompts_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(**fields)
    assert (
        str(caught.value)
        == f"{field} is a list of several: one prompt per request here; `generate_group` takes several"
    )
    assert (caught.value.param, caught.value.code) == (field, "unsupported_field")
