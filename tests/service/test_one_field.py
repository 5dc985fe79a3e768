"""Each sampling parameter is followed all the way: JSON, GenerateReqInput, the frame to the scheduler, the
batch form, and the sampler, whose choice it changes. A hop that forgets it fails here.

A parameter that becomes supported is added to `CASES`; docs/guides/add-a-parameter.md says what else to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import vidette
from tests.service.driver import call
from vidette.front.support import SAMPLING_REFUSED
from vidette.scheduler.support import SAMPLING_HONOURED
from vidette.service import build_app
from vidette.transport.capture import read_capture
from vidette_protocol.codec import Codec
from vidette_protocol.messages import (
    BatchTokenizedGenerateReqInput,
    GenerateReqInput,
    SamplingParams,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.catalogue import FRONT_TO_SCHEDULER, SCHEDULER_TO_FRONT

# Hot, so that whatever narrows the choice is seen, and long enough to come by an end of sequence.
USUAL: Final[dict[str, Any]] = {
    "max_new_tokens": 300,
    "temperature": 1.7,
    "sampling_seed": 7,
    "ignore_eos": True,
}

CASES: Final[dict[str, Any]] = {
    "max_new_tokens": 12,
    "temperature": 0.0,
    "top_p": 0.05,
    "top_k": 1,
    "ignore_eos": False,
    "sampling_seed": 8,
}
"""A value of each that changes what `USUAL` gives."""


def test_every_parameter_is_either_supported_and_followed_or_refused() -> None:
    """Front, scheduler and this test agree on which parameters there are, and on what becomes of each."""
    assert {*SAMPLING_HONOURED, *SAMPLING_REFUSED} == set(SamplingParams.__struct_fields__)
    assert SAMPLING_HONOURED & SAMPLING_REFUSED.keys() == set()
    assert CASES.keys() == SAMPLING_HONOURED


def sent(folder: Path) -> list[TokenizedGenerateReqInput]:
    """Return the requests that the front sent."""
    codec = Codec(sends=SCHEDULER_TO_FRONT, receives=FRONT_TO_SCHEDULER, bulk=True)
    (path,) = folder.glob("front-to-scheduler*")
    messages = [codec.decode(bytearray(record.frame)) for record in read_capture(path).records]
    return [message for message in messages if isinstance(message, TokenizedGenerateReqInput)]


async def test_each_parameter_goes_all_the_way(tmp_path: Path) -> None:
    """What is written in JSON stands in the frame, survives the batch form, and changes the output."""
    async with vidette.open_engine("toy", capture=str(tmp_path)) as engine:
        app = build_app(engine)

        async def generate(params: dict[str, Any]) -> list[int]:
            done = await call(app, "/generate", {"text": "hello", "sampling_params": params})
            assert done.status == 200, done.body
            ids: list[int] = done.json()["output_ids"]
            return ids

        usual = await generate(USUAL)
        assert usual == await generate(USUAL)
        changed = {name: await generate({**USUAL, name: value}) for name, value in CASES.items()}
    forgotten_by_the_sampler = {name for name, ids in changed.items() if ids == usual}
    assert forgotten_by_the_sampler == set()
    requests = sent(tmp_path)[2:]
    for (name, value), request in zip(CASES.items(), requests, strict=True):
        assert fields(request.sampling_params)[name] == value, f"the front forgot {name}"
    codec = Codec(sends=FRONT_TO_SCHEDULER, receives=FRONT_TO_SCHEDULER)
    batch = BatchTokenizedGenerateReqInput(reqs=requests)
    assert codec.decode(codec.encode(batch)) == batch


@pytest.mark.parametrize("name", CASES)
def test_each_parameter_is_one_of_the_library(name: str) -> None:
    """`GenerateReqInput` takes it as JSON and as a Python value alike."""
    params = {name: CASES[name]}
    body = msgspec.json.encode({"text": "hello", "sampling_params": params})
    read = msgspec.json.decode(body, type=GenerateReqInput)
    assert read == GenerateReqInput(text="hello", sampling_params=SamplingParams(**params))


def fields(params: SamplingParams) -> dict[str, Any]:
    return msgspec.structs.asdict(params)
