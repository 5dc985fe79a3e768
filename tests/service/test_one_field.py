"""Each sampling parameter is followed all the way: JSON, GenerateReqInput, the frame to the scheduler, the
batch form, and the sampler, whose choice it changes. A hop that forgets it fails here.

A parameter that becomes supported is added to `CASES`; docs/guides/add-a-parameter.md says what else to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

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
    "max_new_tokens": 120,
    "temperature": 1.7,
    "sampling_seed": 7,
    "ignore_eos": True,
}


class Case(NamedTuple):
    """A value that changes what `USUAL` gives, or what it gives with others beside it."""

    value: Any
    beside: dict[str, Any] = {}  # noqa: RUF012  never changed


WITH_EOS: Final = {"ignore_eos": False, "logit_bias": {256: 5.0}}
"""The model ends by itself, and soon."""

CASES: Final[dict[str, Case]] = {
    "max_new_tokens": Case(12),
    "min_new_tokens": Case(100, WITH_EOS),
    "temperature": Case(0.0),
    "top_p": Case(0.05),
    "top_k": Case(1),
    "min_p": Case(0.9),
    "ignore_eos": Case(False),
    "sampling_seed": Case(8),
    "frequency_penalty": Case(2.0),
    "presence_penalty": Case(2.0),
    "repetition_penalty": Case(2.0),
    "logit_bias": Case({65: 100.0}),
    "stop": Case(["e", "i"]),
    "stop_token_ids": Case([101, 105], {"ignore_eos": False, "logit_bias": {101: 5.0}}),
    "stop_regex": Case(["[a-e]+"]),
    "no_stop_trim": Case(True, {"stop": ["e", "i"]}),
    "skip_special_tokens": Case(False, {"logit_bias": {256: 5.0}}),
    "spaces_between_special_tokens": Case(False),
    "stream_interval": Case(1000),
}
WITHOUT_EFFECT: Final = {"spaces_between_special_tokens"}
"""No tokenizer that we read puts any there."""


def test_every_parameter_is_either_supported_and_followed_or_refused() -> None:
    """Front, scheduler and this test agree on which parameters there are, and on what becomes of each."""
    assert {*SAMPLING_HONOURED, *SAMPLING_REFUSED} == set(SamplingParams.__struct_fields__)
    # Several answers are several requests, each for one.
    assert SAMPLING_HONOURED & SAMPLING_REFUSED.keys() == {"n"}
    assert CASES.keys() == SAMPLING_HONOURED - {"n"}


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

        async def generate(params: dict[str, Any]) -> Any:
            """Return what comes of it: text, tokens, and whether it came bit by bit."""
            body = {"text": "hello", "stream": True, "sampling_params": params}
            *events, last = (await call(app, "/generate", body)).events
            assert last == "[DONE]", last
            return events[-1]["text"], events[-1]["output_ids"], len(events) > 2

        usual = await generate(USUAL)
        assert usual == await generate(USUAL)
        given = {
            name: await generate({**USUAL, **case.beside, name: case.value}) for name, case in CASES.items()
        }
        without = {
            name: await generate({**USUAL, **case.beside}) if case.beside else usual
            for name, case in CASES.items()
        }
    forgotten_by_the_sampler = {name for name in CASES if given[name] == without[name]}
    assert forgotten_by_the_sampler == WITHOUT_EFFECT
    requests = sent(tmp_path)[2 : 2 + len(CASES)]
    for (name, case), request in zip(CASES.items(), requests, strict=True):
        assert fields(request.sampling_params)[name] == case.value, f"the front forgot {name}"
    codec = Codec(sends=FRONT_TO_SCHEDULER, receives=FRONT_TO_SCHEDULER)
    batch = BatchTokenizedGenerateReqInput(reqs=requests)
    assert codec.decode(codec.encode(batch)) == batch


@pytest.mark.parametrize("name", CASES)
def test_each_parameter_is_one_of_the_library(name: str) -> None:
    """`GenerateReqInput` takes it as JSON and as a Python value alike."""
    params = {name: CASES[name].value}
    body = msgspec.json.encode({"text": "hello", "sampling_params": params})
    read = msgspec.json.decode(body, type=GenerateReqInput)
    assert read == GenerateReqInput(text="hello", sampling_params=SamplingParams(**params))


def fields(params: SamplingParams) -> dict[str, Any]:
    return msgspec.structs.asdict(params)
