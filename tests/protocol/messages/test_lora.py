from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.protocol.conftest import ANY

from vidette_fuzz.samples import SAMPLES
from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import (
    LoadLoRAAdapterFromTensorsReqInput,
    LoadLoRAAdapterReqInput,
    LoRARef,
    Tag,
)


def test_an_adapter_from_files_can_be_loaded_again() -> None:
    load = LoadLoRAAdapterReqInput(id=1, lora_id="f" * 32, lora_name="poet", lora_path="a/poet", pinned=True)
    assert load.to_ref() == LoRARef("f" * 32, "poet", "a/poet", pinned=True, reloadable=True)


def test_an_adapter_from_tensors_cannot() -> None:
    load = SAMPLES["load-lora-from-tensors"]
    assert isinstance(load, LoadLoRAAdapterFromTensorsReqInput)
    assert load.to_ref() == LoRARef(load.lora_id, "poet", None, pinned=True, reloadable=False)


def test_an_adapter_needs_an_id() -> None:
    with pytest.raises(ValueError, match=r"^an adapter needs an id$"):
        LoRARef("")
    frame = msgspec.msgpack.encode([Tag.LORA_UPDATE_OUTPUT, 1, True, "", {"poet": ["", "poet"]}])
    with pytest.raises(DecodeError, match="an adapter needs an id"):
        ANY.decode(frame)


@pytest.mark.parametrize(
    ("named", "files", "sound"),
    [([{}], None, True), (None, [b""], True), (None, None, False), ([{}], [b""], False)],
)
def test_tensors_come_in_just_one_way(named: Any, files: Any, sound: bool) -> None:
    load = SAMPLES["load-lora-from-tensors"]
    message = msgspec.structs.replace(load, named_tensors=named, serialized_named_tensors=files)
    fault = "just one of named_tensors and serialized_named_tensors is needed"
    assert message.check_columns() == (None if sound else fault)
