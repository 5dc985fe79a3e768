from __future__ import annotations

import msgspec
import pytest
from tests.protocol.conftest import ANY

from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import AddExternalCorpusReqInput, FlushCacheReqInput, pack_i32


@pytest.mark.parametrize(
    ("chunks", "fault"),
    [
        ([], None),
        ([pack_i32([1, 2]), pack_i32([])], None),
        ([pack_i32([1]), memoryview(b"abc")], "a chunk of 3 bytes, not of int32"),
    ],
)
def test_a_corpus_is_of_token_ids(chunks: list[memoryview], fault: str | None) -> None:
    corpus = AddExternalCorpusReqInput(id=1, corpus_id="laws", token_chunks=chunks)
    assert corpus.check_columns() == fault


@pytest.mark.parametrize("field", ["timeout_s", "deadline_s"])
def test_no_time_is_negative(field: str) -> None:
    whole = FlushCacheReqInput(id=1, timeout_s=0.0, deadline_s=0.0)
    assert ANY.decode(ANY.encode(whole)) == whole
    with pytest.raises(DecodeError, match=r">= 0"):
        ANY.decode(ANY.encode(msgspec.structs.replace(whole, **{field: -0.5})))
