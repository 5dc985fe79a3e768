from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.protocol.conftest import ANY

from vidette_fuzz.samples import SAMPLES
from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import (
    InitWeightsUpdateGroupReqInput,
    UpdateWeightsFromDistributedReqInput,
    UpdateWeightsFromTensorReqInput,
)


@pytest.mark.parametrize(
    ("names", "dtypes", "shapes", "fault"),
    [
        ([], [], [], None),
        (["a"], ["int8"], [[2, 3]], None),
        (["a", "b"], ["int8"], [[2], [3]], "2 names, 1 dtypes, 2 shapes"),
        (["a"], ["int8"], [], "1 names, 1 dtypes, 0 shapes"),
        ([], ["int8"], [[2]], "0 names, 1 dtypes, 1 shapes"),
    ],
)
def test_each_tensor_of_a_broadcast_has_a_name_a_dtype_and_a_shape(
    names: list[str], dtypes: list[str], shapes: list[list[int]], fault: str | None
) -> None:
    message = UpdateWeightsFromDistributedReqInput(id=1, names=names, dtypes=dtypes, shapes=shapes)
    assert message.check_columns() == fault


@pytest.mark.parametrize(
    ("named", "files", "sound"),
    [([{}], None, True), (None, [b""], True), ([], None, True), (None, None, False), ([{}], [b""], False)],
)
def test_tensors_come_in_just_one_way(named: Any, files: Any, sound: bool) -> None:
    message = UpdateWeightsFromTensorReqInput(id=1, named_tensors=named, serialized_named_tensors=files)
    fault = "just one of named_tensors and serialized_named_tensors is needed"
    assert message.check_columns() == (None if sound else fault)


@pytest.mark.parametrize(
    ("field", "value"),
    [("master_port", 0), ("master_port", 65536), ("rank_offset", -1), ("world_size", 0)],
)
def test_a_group_that_cannot_be_is_refused(field: str, value: int) -> None:
    group = SAMPLES["init-weights-group"]
    assert isinstance(group, InitWeightsUpdateGroupReqInput)
    with pytest.raises(DecodeError, match=r"Expected `int` [<>]="):
        ANY.decode(ANY.encode(msgspec.structs.replace(group, **{field: value})))
