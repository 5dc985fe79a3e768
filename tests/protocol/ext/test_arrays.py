from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.arrays import pack_array, unpack_array
from vidette_protocol.ext.dtypes import ARRAY_TYPECODES


def test_the_golden_bytes() -> None:
    payload = pack_array(array("q", [1, 2]))
    assert payload == bytes.fromhex("00000002 a171 0100000000000000 0200000000000000")


@given(typecode=st.sampled_from(sorted(ARRAY_TYPECODES)), raw=st.binary(max_size=64))
def test_every_array_comes_back(typecode: str, raw: bytes) -> None:
    value: array[int] | array[float] = array(typecode)
    value.frombytes(raw[: len(raw) - len(raw) % value.itemsize])
    back = unpack_array(memoryview(pack_array(value)))
    assert back.typecode == typecode
    assert back.tobytes() == value.tobytes()


def test_an_array_owns_its_memory() -> None:
    frame = bytearray(pack_array(array("i", [1, 2])))
    back = unpack_array(memoryview(frame))
    frame[-4:] = bytes(4)
    back.append(3)
    assert back == array("i", [1, 2, 3])


@pytest.mark.filterwarnings("ignore:The 'u' type code is deprecated:DeprecationWarning")
def test_characters_do_not_travel() -> None:
    with pytest.raises(TypeError, match="send its text"):
        pack_array(array("u", "text"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b"\0\0\0\2" + b"\xa1u" + b"\xff\xff\xff\x7f", "typecode 'u' is not allowed"),
        (b"\0\0\0\3" + b"\xa2qq", "typecode 'qq' is not allowed"),
        (b"\0\0\0\1" + b"\xa0", "typecode '' is not allowed"),
        (b"\0\0\0\1" + b"\x01", "invalid metadata: Expected `str`"),
        (b"\0\0\0\2" + b"\xa1\xff", "invalid metadata"),
        (b"\0\0\0\0", "invalid metadata"),
        (b"\0\0\0\3" + b"\xa1q\xc0", "invalid metadata"),
        (b"\0\0\0\2" + b"\xa1q" + bytes(7), "7 bytes are no array of 8"),
    ],
)
def test_what_is_malformed_is_refused(payload: bytes, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault):
        unpack_array(memoryview(payload))
