from __future__ import annotations

from vidette_protocol.ext import CudaIpcHandle, ModelData, ShmPointer, pointers_in
from vidette_protocol.messages.multimodal import Modality, MultimodalDataItem, MultimodalProcessorOutput


def test_every_pointer_of_a_message_is_found_once() -> None:
    names = ["a", "b", "c", "d", "e"]
    pointers = [ShmPointer(name, (1,), "int8") for name in names]
    handle = CudaIpcHandle({"ipc_extra": None, "tensor_data": "a tensor"}, {})
    item = MultimodalDataItem(modality=Modality.IMAGE, feature=pointers[0])
    item.nested = {"x": [(pointers[1], "text")], "y": ModelData({"z": pointers[2]})}
    again = MultimodalDataItem(modality=Modality.AUDIO, feature=[pointers[0], handle])
    output = MultimodalProcessorOutput(
        mm_items=[item, again], mrope_positions=pointers[3], token_type_ids=[pointers[4]]
    )
    found = list(pointers_in(output))
    assert len(found) == 6
    assert {pointer.shm_name for pointer in found if isinstance(pointer, ShmPointer)} == set(names)
    assert [pointer for pointer in found if isinstance(pointer, CudaIpcHandle)] == [handle]


def test_what_holds_none_has_none() -> None:
    loop: list[object] = [1, "text", None, {"a": 2.0}]
    loop.append(loop)
    for value in (loop, None, b"", MultimodalProcessorOutput(mm_items=[])):
        assert list(pointers_in(value)) == []


def test_a_deep_value_is_searched_to_the_end() -> None:
    pointer = ShmPointer("a", (1,), "int8")
    value: object = pointer
    for _ in range(5000):
        value = [value]
    assert list(pointers_in(value)) == [pointer]
