"""Which requests a scheduler honours as a whole: every other field that asks for something is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.engine.scheduler.conftest import Driver, request

from vidette.scheduler.support import HONOURED, SAMPLING_HONOURED, find_unsupported
from vidette_protocol.messages import (
    FinishReason,
    SamplingParams,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.multimodal import MultimodalProcessorOutput, PositionalEmbeds

ASKED: dict[str, Any] = {
    "image_inputs": MultimodalProcessorOutput(mm_items=[]),
    "token_type_ids": np.zeros(3, np.int64),
    "lora_id": "f" * 32,
    "custom_logit_processor": "quiet",
    "positional_embed_overrides": PositionalEmbeds(embeds=np.zeros((1, 2)), positions=[0]),
    "bootstrap_host": "prefill",
    "bootstrap_port": 0,
    "bootstrap_room": 0,
}
"""Fields that are not honoured, each with a value that asks for something."""

SAMPLING_ASKED: dict[str, Any] = {
    "json_schema": "{}",
    "regex": "",
    "ebnf": "x",
    "structural_tag": "{}",
    "custom_params": {},
}

GIVEN: dict[str, Any] = {
    "input_text": "hello",
    "stream": True,
    "logprob_start_len": 0,
    "extra_key": "tenant",
    "cache_salt": "salt",
    "routing_key": "tenant",
}
"""Fields that ask for nothing that a scheduler could lack, with another value than their default."""


def asking(**fields: Any) -> TokenizedGenerateReqInput:
    return msgspec.structs.replace(request(1), **fields)


def sampling(**params: Any) -> TokenizedGenerateReqInput:
    return request(1, **params)


def test_each_field_is_honoured_or_refused() -> None:
    assert HONOURED | ASKED.keys() == set(TokenizedGenerateReqInput.__struct_fields__)
    assert not HONOURED & ASKED.keys()
    assert SAMPLING_HONOURED | SAMPLING_ASKED.keys() == set(SamplingParams.__struct_fields__)
    assert not SAMPLING_HONOURED & SAMPLING_ASKED.keys()


def test_a_request_that_asks_for_nothing_more_is_honoured() -> None:
    assert find_unsupported(request(1, temperature=0.5, top_p=0.9, top_k=3, ignore_eos=True)) is None
    assert find_unsupported(asking(**GIVEN)) is None


@pytest.mark.parametrize("name", ASKED)
def test_a_field_that_is_not_honoured_is_named(name: str) -> None:
    assert find_unsupported(asking(**{name: ASKED[name]})) == f"this scheduler does not support {name}"


@pytest.mark.parametrize("name", SAMPLING_ASKED)
def test_a_sampling_parameter_that_is_not_honoured_is_named(name: str) -> None:
    assert (
        find_unsupported(sampling(**{name: SAMPLING_ASKED[name]}))
        == f"this scheduler does not support {name}"
    )


def test_all_of_them_are_named() -> None:
    both = msgspec.structs.replace(sampling(ebnf="x", regex="y"), bootstrap_port=3, lora_id="f")
    assert find_unsupported(both) == "this scheduler does not support lora_id, bootstrap_port, regex, ebnf"


def test_such_a_request_ends_with_an_error_and_takes_nothing() -> None:
    driver = Driver()
    effects = driver.step(asking(lora_id="f"), request(2, max_new_tokens=1))
    assert effects.over == [1]
    told = "this scheduler does not support lora_id"
    assert driver.heard.ends == {1: FinishReason("error", message=told, status_code=400)}
    assert driver.model.plans == []
    driver.run()
    assert driver.end(2) == "length"
    driver.assert_nothing_is_held()
