from __future__ import annotations

import msgspec
import pytest
from tests.protocol.conftest import ANY

from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import Tag, pack_i64
from vidette_protocol.messages.bulk import ArenaCredit


def test_a_credit_is_of_whole_offsets() -> None:
    assert ArenaCredit(packed_places=pack_i64([0, 1 << 40])).check_columns() is None
    torn = ArenaCredit(packed_places=memoryview(bytes(12)))
    assert torn.check_columns() == "a packed column has 12 bytes, not a multiple of 8"


@pytest.mark.parametrize("nbytes", [-1, 0, (1 << 47) + 1])
def test_memory_has_a_length_that_can_be(nbytes: int) -> None:
    with pytest.raises(DecodeError, match="Expected `int`"):
        ANY.decode(msgspec.msgpack.encode([Tag.ARENA_OFFER, nbytes]))
