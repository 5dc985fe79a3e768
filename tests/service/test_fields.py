"""Every field of a JSON object is honoured, refused, or unknown; none is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, Struct
from starlette.applications import Starlette

from tests.service.driver import call
from vidette.api import UNSUPPORTED, UNSUPPORTED_SAMPLING
from vidette.errors import UsageError
from vidette.service.fields import Fields
from vidette.service.native import ONLY_SGLANG, SAMPLING_ONLY_SGLANG
from vidette_protocol.messages import GenerateReqInput, SamplingParams


class Asked(Struct, frozen=True):
    done: int = 1
    later: int = 2


def test_a_field_of_the_struct_may_be_refused() -> None:
    """Then it is not read: a value that asks for nothing leaves the default."""
    fields = Fields(Asked, {"later": (2, 3), "never": ()})
    assert fields.decode(b'{"done": 5, "later": 3, "never": null}') == Asked(done=5)
    for body, message in (
        (b'{"later": 4}', "later is not supported yet; only 2 or 3 is accepted"),
        (b'{"never": 4}', "never is not supported yet"),
        (b'{"other": 4}', "there is no field 'other'; the fields are done"),
    ):
        with pytest.raises(UsageError) as caught:
            fields.decode(body)
        assert str(caught.value) == message


def test_a_reader_is_asked_before_the_type() -> None:
    fields = Fields(Asked, {}, readers={"done": lambda raw, path: len(raw) + len(path)})
    assert fields.decode(b'{"done": "four", "later": 5}') == Asked(done=10, later=5)


def test_a_list_is_counted_before_anything_is_made_of_it() -> None:
    fields = Fields(Asked, {})
    assert fields.decode_many(b'[{"done": 3}, {}]', "asked", 2) == [Asked(done=3), Asked()]
    with pytest.raises(UsageError, match=r"^asked has 3 items; at most 2 are accepted$"):
        fields.decode_many(b'[{"other": 3}, 4, "x"]', "asked", 2)
    with pytest.raises(UsageError) as caught:
        fields.decode_many(b'[{}, {"done": "x"}]', "asked", 2)
    assert caught.value.param == "asked[1].done"


class Lists(Struct, frozen=True):
    stops: list[str] | None = None
    raw: Raw = Raw()
    read: int = 0


def test_the_json_of_a_field_is_bounded_before_it_is_read() -> None:
    fields = Fields(Lists, {}, readers={"read": lambda raw, path: len(raw) + len(path)}, field_bytes=6)
    assert fields.decode(b'{"stops": ["ab"]}') == Lists(stops=["ab"])
    with pytest.raises(UsageError, match=r"^stops is 7 bytes of JSON; at most 6 are read$") as caught:
        fields.decode(b'{"stops": [1,2,3]}')  # of the wrong type besides
    assert caught.value.param == "stops"
    # Whoever reads these has bounds of its own.
    assert fields.decode(b'{"raw": "123456789", "read": "1234567"}').read == 13


def test_what_only_others_have_is_no_field_of_ours() -> None:
    assert not ONLY_SGLANG.keys() & set(GenerateReqInput.__struct_fields__)
    assert not SAMPLING_ONLY_SGLANG.keys() & set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("field", [*UNSUPPORTED, *ONLY_SGLANG])
async def test_what_is_not_supported_is_refused(app: Starlette, field: str) -> None:
    await refused(app, {field: {"asks": "for something"}}, field)


# `n` is supported here: the answer is a list then.
@pytest.mark.parametrize("field", sorted({*UNSUPPORTED_SAMPLING, *SAMPLING_ONLY_SGLANG} - {"n"}))
async def test_sampling_that_is_not_supported_is_refused(app: Starlette, field: str) -> None:
    await refused(app, {"sampling_params": {field: {"asks": "for something"}}}, f"sampling_params.{field}")


async def refused(app: Starlette, fields: dict[str, Any], param: str) -> None:
    done = await call(app, "/generate", {"text": "x", **fields})
    assert done.status == 400
    assert (done.error["param"], done.error["code"]) == (param, "unsupported_field")
