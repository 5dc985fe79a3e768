from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vidette_fuzz.samples import SAMPLES
from vidette_protocol.messages import (
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    GenerateReqInput,
    Message,
    SamplingParams,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
    pack_i32,
    view_i32,
)


def test_the_prompt_is_read_where_it_lies() -> None:
    request = SAMPLES["request"]
    assert isinstance(request, TokenizedGenerateReqInput)
    assert request.token_ids.tolist() == [1, 15043, 3186]
    assert request.token_ids.obj is request.input_ids.obj


OF_BATCHES = "of which none may be missing and no vid come twice"
UNSETTLED = "max_new_tokens or sampling_seed is not set, or n is not 1"


@pytest.mark.parametrize(
    ("nbytes", "params", "fault"),
    [
        (4, SamplingParams(sampling_seed=0), None),
        (0, SamplingParams(sampling_seed=0), "token ids of 0 bytes, not one or more int32"),
        (6, SamplingParams(sampling_seed=0), "token ids of 6 bytes, not one or more int32"),
        (4, SamplingParams(sampling_seed=None), UNSETTLED),
        (4, SamplingParams(sampling_seed=0, n=2), UNSETTLED),
        (
            4,
            SamplingParams(sampling_seed=0, max_new_tokens=None),
            UNSETTLED,
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


def generate(vid: int, **fields: Any) -> TokenizedGenerateReqInput:
    params = SamplingParams(sampling_seed=0)
    made = TokenizedGenerateReqInput(vid=vid, rid=f"r{vid}", input_ids=pack_i32([1]), sampling_params=params)
    return msgspec.structs.replace(made, **fields)


def embed(vid: int, **fields: Any) -> TokenizedEmbeddingReqInput:
    made = TokenizedEmbeddingReqInput(vid=vid, rid=f"r{vid}", input_ids=pack_i32([1, 2]))
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (generate(1, token_ids_logprob=pack_i32([5])), None),
        (generate(1, token_ids_logprob=pack_i32([])), "token ids of 0 bytes, not one or more int32"),
        (generate(1, token_ids_logprob=memoryview(b"abc")), "token ids of 3 bytes, not one or more int32"),
        (embed(1), None),
        (embed(1, dimensions=1), None),
        (embed(1, dimensions=0), "dimensions is 0"),
        (embed(1, input_ids=pack_i32([])), "token ids of 0 bytes, not one or more int32"),
        (BatchTokenizedGenerateReqInput(reqs=[generate(1), generate(2)]), None),
        (BatchTokenizedEmbeddingReqInput(reqs=[embed(1), embed(2)]), None),
        (BatchTokenizedGenerateReqInput(reqs=[]), f"0 requests, {OF_BATCHES}"),
        (BatchTokenizedEmbeddingReqInput(reqs=[]), f"0 requests, {OF_BATCHES}"),
        (BatchTokenizedGenerateReqInput(reqs=[generate(1), generate(1)]), f"2 requests, {OF_BATCHES}"),
        (BatchTokenizedEmbeddingReqInput(reqs=[embed(3), embed(3)]), f"2 requests, {OF_BATCHES}"),
        (
            BatchTokenizedGenerateReqInput(reqs=[generate(1), generate(2, input_ids=memoryview(b"x"))]),
            "token ids of 1 bytes, not one or more int32",
        ),
        (BatchTokenizedEmbeddingReqInput(reqs=[embed(1), embed(2, dimensions=-1)]), "dimensions is -1"),
    ],
)
def test_what_a_front_must_not_send_is_told(request_: Message, fault: str | None) -> None:
    assert request_.check_columns() == fault


@pytest.mark.parametrize("name", ["requests", "embedding-requests"])
def test_a_batch_is_the_requests_in_it(name: str) -> None:
    batch = SAMPLES[name]
    assert isinstance(batch, BatchTokenizedGenerateReqInput | BatchTokenizedEmbeddingReqInput)
    assert len(batch) == len(batch.reqs) > 1
    assert list(batch) == batch.reqs
    assert [batch[row] for row in range(len(batch))] == batch.reqs
    assert batch.vids == [req.vid for req in batch.reqs]
    assert batch.rids == [req.rid for req in batch.reqs]
    assert batch[0].token_ids.tolist() == view_i32(batch.reqs[0].input_ids).tolist()


# --- what callers send ------------------------------------------------------------------------------


def test_the_body_of_a_request_is_read_with_its_defaults() -> None:
    body = b'{"text": "Hello", "sampling_params": {"max_new_tokens": 4}}'
    request = msgspec.json.decode(body, type=GenerateReqInput)
    assert request == GenerateReqInput(text="Hello", sampling_params=SamplingParams(max_new_tokens=4))
    assert (request.rid, request.input_ids, request.stream) == (None, None, False)


def test_a_field_that_is_not_known_is_refused() -> None:
    """Better than not honouring it silently."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `lora_paths`"):
        msgspec.json.decode(b'{"text": "Hello", "lora_paths": "x"}', type=GenerateReqInput)
