from __future__ import annotations

import msgspec
import pytest

from vidette_fuzz.samples import SAMPLES
from vidette_protocol.messages import GenerateReqInput, SamplingParams, TokenizedGenerateReqInput


def test_the_prompt_is_read_where_it_lies() -> None:
    request = SAMPLES["request"]
    assert isinstance(request, TokenizedGenerateReqInput)
    assert request.token_ids.tolist() == [1, 15043, 3186]
    assert request.token_ids.obj is request.input_ids.obj


@pytest.mark.parametrize(
    ("nbytes", "params", "fault"),
    [
        (4, SamplingParams(sampling_seed=0), None),
        (0, SamplingParams(sampling_seed=0), "input_ids has 0 bytes, not one or more int32"),
        (6, SamplingParams(sampling_seed=0), "input_ids has 6 bytes, not one or more int32"),
        (4, SamplingParams(sampling_seed=None), "max_new_tokens or sampling_seed is not set"),
        (
            4,
            SamplingParams(sampling_seed=0, max_new_tokens=None),
            "max_new_tokens or sampling_seed is not set",
        ),
        (
            4,
            SamplingParams(sampling_seed=0, max_new_tokens=-1),
            "max_new_tokens is -1; it must be from 0 to 1048576",
        ),
    ],
)
def test_a_request_lacks_nothing_that_the_front_fills_in(
    nbytes: int, params: SamplingParams, fault: str | None
) -> None:
    request = TokenizedGenerateReqInput(
        vid=0, floor=0, rid="r", input_ids=memoryview(bytes(nbytes)), sampling_params=params
    )
    assert fault == request.check_columns()


# --- what callers send ------------------------------------------------------------------------------


def test_the_body_of_a_request_is_read_with_its_defaults() -> None:
    body = b'{"text": "Hello", "sampling_params": {"max_new_tokens": 4}}'
    request = msgspec.json.decode(body, type=GenerateReqInput)
    assert request == GenerateReqInput(text="Hello", sampling_params=SamplingParams(max_new_tokens=4))
    assert (request.rid, request.input_ids, request.stream) == (None, None, False)


def test_a_field_that_is_not_known_is_refused() -> None:
    """Better than not honouring it silently."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `lora_path`"):
        msgspec.json.decode(b'{"text": "Hello", "lora_path": "x"}', type=GenerateReqInput)
