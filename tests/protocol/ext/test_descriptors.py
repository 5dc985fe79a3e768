from __future__ import annotations

from typing import Any

import pytest

from vidette_protocol.errors import LocalProtocolError
from vidette_protocol.ext import Acknowledgement, CudaIpcHandle, CudaIpcMemory, ShmPointer

IPC = (0, b"handle", 96, 0, b"counter", 0, b"event", True)


def extra(**changes: Any) -> dict[str, Any]:
    """The state of a float32 tensor of 2 x 3 in a storage of 96 bytes."""
    return {
        "handle": IPC,
        "device_index": 0,
        "shape": (2, 3),
        "stride": (3, 1),
        "dtype": "float32",
        "storage_offset": 0,
        "recons_shape": (2, 3),
        "recons_dtype": "float32",
    } | changes


def handle(**changes: Any) -> CudaIpcHandle:
    return CudaIpcHandle({"ipc_extra": extra(**changes), "tensor_data": None}, {"handle": "psm_1"})


# --- acknowledged exactly once --------------------------------------------------------------------


def test_an_acknowledgement_is_taken_once() -> None:
    acknowledgement = Acknowledgement()
    assert not acknowledgement.taken
    assert repr(acknowledgement) == "<Acknowledgement not taken>"
    acknowledgement.take()
    assert acknowledgement.taken
    assert repr(acknowledgement) == "<Acknowledgement taken>"
    with pytest.raises(LocalProtocolError, match="acknowledged once"):
        acknowledgement.take()


# --- shared memory --------------------------------------------------------------------------------


def test_a_pointer_says_what_it_points_at() -> None:
    pointer = ShmPointer("psm_1", (2, 3), "bfloat16", (1 << 64) + 7)
    assert pointer.nbytes == 12
    assert pointer.precomputed_hash == 7
    assert repr(pointer) == "ShmPointer('psm_1', (2, 3), 'bfloat16', 7)"


def test_pointers_to_the_same_are_equal_whether_acknowledged_or_not() -> None:
    pointer = ShmPointer("psm_1", (2,), "int8")
    pointer.acknowledgement.take()
    assert pointer == ShmPointer("psm_1", (2,), "int8")
    assert pointer != ShmPointer("psm_2", (2,), "int8")
    assert pointer != "psm_1"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "/a", "../a", "a\0", "a\n", "a" * 201, "ä"]
)
def test_a_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a segment"):
        ShmPointer(name, (1,), "int8")


@pytest.mark.parametrize(
    ("shape", "dtype", "fault"),
    [
        ((-1,), "int8", "no shape"),
        ((1,) * 65, "int8", "no shape"),
        ((1 << 47, 2), "int8", "larger than any memory"),
        ((1,), "object", "dtype 'object' is not allowed"),
    ],
)
def test_a_pointer_that_cannot_be_is_refused(shape: tuple[int, ...], dtype: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ShmPointer("psm_1", shape, dtype)


# --- CUDA -----------------------------------------------------------------------------------------


def test_a_handle_says_what_memory_it_opens() -> None:
    memory = handle().memory()
    assert memory is not None
    assert (memory.opened, memory.shape, memory.dtype) == (IPC, (2, 3), "float32")
    assert handle().name == "psm_1"
    assert repr(handle()).startswith("CudaIpcHandle({'ipc_extra': ")


def test_a_handle_may_carry_the_tensor_instead() -> None:
    copied = CudaIpcHandle({"ipc_extra": None, "tensor_data": "a tensor"}, {})
    assert copied.memory() is None
    copied.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (), "stride": (), "recons_shape": ()},
        {"shape": (0, 3), "recons_shape": (0,)},
        {"storage_offset": 18},
        {"stride": (4, 2)},
        {"stride": (0, 0)},
        {"recons_shape": (24,), "recons_dtype": "uint8"},
        {"handle": None, "pool_handle": IPC, "pool_byte_offset": 72, "nbytes": 24, "pool_device_index": 0},
        {"handle": None, "pool_handle": IPC, "pool_byte_offset": 72},
        {"newer": "what we do not know yet"},
    ],
)
def test_memory_that_fits_together_is_taken(changes: dict[str, Any]) -> None:
    handle(**changes).check()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"handle": None}, "just one of"),
        ({"pool_handle": IPC}, "just one of"),
        ({"handle": IPC[:5]}, "Expected `array` of length 8"),
        ({"handle": (-1, *IPC[1:])}, "Expected `int` >= 0"),
        ({"handle": (0, b"", *IPC[2:])}, "length >= 1"),
        ({"dtype": "object"}, "is not allowed"),
        ({"recons_dtype": "object"}, "is not allowed"),
        ({"dtype": 7}, "Expected `str`"),
        ({"shape": (-1,)}, "Expected `int` >= 0"),
        ({"shape": (1 << 46, 4), "recons_shape": (1 << 46, 4)}, "larger than any memory"),
        ({"stride": (1,)}, "2 dimensions with 1 strides"),
        ({"stride": (-3, 1)}, "Expected `int` >= 0"),
        ({"recons_shape": (7,)}, "24 bytes are no float32"),
        ({"device_index": 1}, "another device than 1"),
        ({"handle": None, "pool_handle": IPC, "pool_device_index": 1}, "another device than 0"),
        ({"storage_offset": 19}, "ends at byte 100 of 96"),
        ({"stride": (19, 3)}, "ends at byte 104 of 96"),
        ({"handle": None, "pool_handle": IPC, "pool_byte_offset": 76}, "ends at byte 24 of 20"),
        ({"handle": None, "pool_handle": IPC, "pool_byte_offset": 76, "nbytes": 24}, "no 24 bytes at 76"),
        ({"handle": None, "pool_handle": IPC, "pool_byte_offset": 2}, "no 94 bytes at 2"),
        ({"handle": None, "pool_handle": IPC, "nbytes": 20}, "ends at byte 24 of 20"),
        ({"recons_shape": None}, "Expected `array`"),
    ],
)
def test_memory_that_does_not_fit_together_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        handle(**changes).check()


@pytest.mark.parametrize("state", [{}, {"ipc_extra": None}, {"ipc_extra": None, "tensor_data": None}])
def test_a_handle_leads_to_something(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="neither ipc_extra nor tensor_data"):
        CudaIpcHandle(state, {}).check()


@pytest.mark.parametrize("meta", [{}, {"handle": 5}, {"handle": "../psm"}])
def test_memory_that_is_shared_has_a_name(meta: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no name of shared memory"):
        CudaIpcHandle({"ipc_extra": extra()}, meta).check()


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="a list as ipc_extra"):
        CudaIpcHandle({"ipc_extra": []}, {}).check()


def test_memory_is_checked_however_it_is_made() -> None:
    with pytest.raises(ValueError, match="just one of"):
        CudaIpcMemory(**extra(handle=None))
