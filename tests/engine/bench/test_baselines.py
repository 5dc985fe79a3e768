"""The baselines are honest: they carry what ours do, in full, through bytes and back."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import msgspec
import pytest

from vidette.bench.baselines import PICKLE_4, PICKLE_5, Coder, PickleCodec, StructCodec
from vidette.bench.codecs import NestedExtCodec
from vidette.bench.documented import SamplingParams, document_request, document_step, slim_step
from vidette.bench.messages import Load, load_codec
from vidette.bench.samples import PROMPT_CHARS, PROMPT_TOKENS, make_request, make_rows
from vidette_protocol.messages import FinishReason, TokenizedGenerateReqInput, TokenRow

REQUEST = make_request(Random(1))
ROWS = make_rows(Random(2), 32)


def through(codec: Coder, message: object) -> Any:
    return codec.decode(codec.encode(message))


def request_forms() -> dict[str, Any]:
    documented = document_request(REQUEST)
    lists, arrays = StructCodec(documented, arrays=False), StructCodec(documented, arrays=True)
    return {
        "pickle4": through(PickleCodec(PICKLE_4), documented),
        "pickle5": through(PickleCodec(PICKLE_5), documented),
        "lists": through(lists, lists.message),
        "arrays": through(arrays, arrays.message),
    }


def step_forms() -> dict[str, Any]:
    documented = document_step(ROWS)
    lists = StructCodec(documented, arrays=False)
    return {
        "pickle4": through(PickleCodec(PICKLE_4), documented),
        "pickle5": through(PickleCodec(PICKLE_5), documented),
        "lists": through(lists, lists.message),
    }


def rows_of(step: Any, offsets: list[int]) -> list[TokenRow]:
    """Say in our terms what a step in one of the other forms holds."""
    return [
        TokenRow(vid, offset, tuple(ids), None if reason is None else FinishReason(**reason))
        for vid, offset, ids, reason in zip(
            step.vids, offsets, step.output_ids, step.finished_reasons, strict=True
        )
    ]


def test_the_samples_are_as_large_as_documented() -> None:
    assert isinstance(REQUEST, TokenizedGenerateReqInput)
    assert REQUEST.check_columns() is None
    assert len(REQUEST.token_ids) == PROMPT_TOKENS == 1024
    assert REQUEST.input_text is not None
    assert len(REQUEST.input_text) == PROMPT_CHARS == 4096
    assert len({row.vid for row in ROWS}) == len(ROWS) == 32
    assert sum(row.reason is not None for row in ROWS) == 1


@pytest.mark.parametrize("form", request_forms().values(), ids=request_forms().keys())
def test_a_request_says_the_same_in_every_form(form: Any) -> None:
    assert (form.vid, form.rid, form.input_text) == (REQUEST.vid, REQUEST.rid, REQUEST.input_text)
    assert list(form.input_ids) == REQUEST.token_ids.tolist()
    assert form.stream == REQUEST.stream
    sampling = msgspec.structs.asdict(REQUEST.sampling_params)
    for field in fields(SamplingParams):
        assert getattr(form.sampling_params, field.name) == sampling.pop(field.name)
    assert not sampling, "sampling parameters that the documented form does not have"


@pytest.mark.parametrize("form", step_forms().values(), ids=step_forms().keys())
def test_a_step_says_the_same_in_every_form(form: Any) -> None:
    starts = [end - len(ids) for end, ids in zip(form.completion_tokens, form.output_ids, strict=True)]
    assert rows_of(form, starts) == ROWS
    assert form.decode_ids == form.output_ids
    assert len(set(form.rids)) == len(ROWS)


def test_a_slim_step_says_the_same() -> None:
    form = through(PickleCodec(PICKLE_4), slim_step(ROWS))
    assert rows_of(form, form.offsets) == ROWS
    assert {field.name for field in fields(form)} == {"vids", "offsets", "output_ids", "finished_reasons"}


def test_an_array_is_the_same_nested_and_flat() -> None:
    import numpy as np

    load = Load(body=np.arange(6, dtype=np.float32).reshape(2, 3))
    for codec in (NestedExtCodec(), load_codec()):
        body = through(codec, load).body
        assert body.dtype == np.float32
        assert body.tolist() == [[0, 1, 2], [3, 4, 5]]
