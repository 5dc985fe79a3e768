"""The GGUF reader: what it reads, and that nothing but `ModelError` comes out of a damaged file."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vidette.errors import ModelError
from vidette.models.gguf import GGUFFile
from vidette.models.quants import TensorType


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(
    pairs: bytes = b"", tensors: bytes = b"", *, num_pairs: int = 0, num_tensors: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + pairs + tensors


def _tensor(
    name: bytes, *shape: int, kind: int = 0, offset: int = 0, num_dimensions: int | None = None
) -> bytes:
    count = len(shape) if num_dimensions is None else num_dimensions
    return _string(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


def _open(path: Path, content: bytes) -> GGUFFile:
    path.write_bytes(content)
    return GGUFFile(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.gguf"


def _written(path: Path) -> Path:
    """Write one value of every kind, and tensors, with the reference library."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -5)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", val=True)
    writer.add_string("a.string", "Ġé😀")
    writer.add_array("a.strings", ["one", "", "Ġthree"])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("half", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_and_tensors_are_those_the_reference_wrote(path: Path) -> None:
    file = GGUFFile(_written(path))
    assert file.version == 3
    expected = {"u8": 200, "i8": -5, "u16": 60_000, "i16": -30_000, "u32": 4_000_000_000}
    expected |= {"i32": -2_000_000_000, "u64": 2**63, "i64": -(2**62)}
    assert {key: file.value(f"a.{key}", int) for key in expected} == expected
    assert file.value("a.f32", float) == 0.5
    assert file.value("a.f64", float) == 1e300
    assert file.value("a.bool", bool) is True
    assert file.value("a.string", str) == "Ġé😀"
    assert file.strings("a.strings") == ["one", "", "Ġthree"]
    assert file.integers("a.integers").tolist() == [1, -2, 3]
    assert file.tensors["one"].shape == (2, 3)
    assert file.tensors["half"].type is TensorType.F16
    np.testing.assert_array_equal(file.tensor("one"), np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(file.tensor("half"), np.arange(5, dtype=np.float32))


def test_a_value_of_another_kind_or_none_is_refused_by_name(path: Path) -> None:
    file = GGUFFile(_written(path))
    with pytest.raises(ModelError, match=r"some\.gguf: a\.string is 'Ġé😀', not of type int"):
        file.value("a.string", int)
    with pytest.raises(ModelError, match=r"a\.bool is True, not of type int"):
        file.value("a.bool", int)
    with pytest.raises(ModelError, match=r"the metadata has no a\.nothing"):
        file.value("a.nothing", str)
    assert file.value("a.nothing", str, "default") == "default"
    with pytest.raises(ModelError, match=r"a\.integers is .*, not an array of strings"):
        file.strings("a.integers")
    with pytest.raises(ModelError, match=r"a\.floats is .*, not an array of integers"):
        file.integers("a.floats")
    with pytest.raises(ModelError, match=r"a\.nothing is absent"):
        file.integers("a.nothing")
    with pytest.raises(ModelError, match="there is no tensor 'two'"):
        file.tensor("two")


def test_version_2_is_read_like_version_3(path: Path) -> None:
    assert _open(path, _file(version=2)).version == 2


def test_a_file_that_is_not_there_or_empty(path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the model file"):
        GGUFFile(path)
    with pytest.raises(ModelError, match="cannot read the model file"):
        _open(path, b"")
    with pytest.raises(ModelError, match="cannot read the model file"):
        GGUFFile(path.parent)


_PAIR = _string(b"k")
_BAD_FILES = {
    "magic": (b"GGML" + bytes(40), "starts with b'GGML'"),
    "version 1": (_file(version=1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version is 50331648"),
    "more tensors than bytes": (_file(num_tensors=2**63), "number of tensors claims"),
    "more pairs than bytes": (_file(num_pairs=2**40), "number of metadata pairs claims"),
    "endless key": (_file(struct.pack("<Q", 2**64 - 1) + bytes(20), num_pairs=1), "key 0 .* claims"),
    "key not UTF-8": (_file(_string(b"\xff") + struct.pack("<IQ", 10, 1), num_pairs=1), "not UTF-8"),
    "key twice": (_file((_PAIR + struct.pack("<IQ", 10, 1)) * 2, num_pairs=2), "has 'k' twice"),
    "unknown type": (_file(_PAIR + struct.pack("<IQ", 77, 1), num_pairs=1), "'k' has the unknown type 77"),
    "value cut": (_file(_PAIR + struct.pack("<II", 10, 1), num_pairs=1), "ends within k"),
    "endless array": (_file(_PAIR + struct.pack("<IIQ", 9, 4, 2**61), num_pairs=1), "k claims"),
    "endless strings": (_file(_PAIR + struct.pack("<IIQ", 9, 8, 2**60), num_pairs=1), "k claims"),
    "string in array cut": (_file(_PAIR + struct.pack("<IIQQ", 9, 8, 1, 9), num_pairs=1), "'k' is cut off"),
    "strings run out": (
        _file(_PAIR + struct.pack("<IIQ", 9, 8, 2) + _string(b"12345678"), num_pairs=1),
        "'k' is cut off",
    ),
    "string not UTF-8": (
        _file(_PAIR + struct.pack("<IIQ", 9, 8, 1) + _string(b"\xff"), num_pairs=1),
        "'k' is not UTF-8",
    ),
    "array of arrays": (_file(_PAIR + struct.pack("<IIQ", 9, 9, 0), num_pairs=1), "array of arrays"),
    "alignment": (
        _file(_string(b"general.alignment") + struct.pack("<II", 4, 24), num_pairs=1),
        "alignment is 24",
    ),
    "no dimension": (_file(tensors=_tensor(b"t") + bytes(8), num_tensors=1), "'t' has 0 dimensions"),
    "dimensions": (
        _file(tensors=_tensor(b"t", 1, num_dimensions=2**31), num_tensors=1),
        "2147483648 dimensions",
    ),
    "zero size": (_file(tensors=_tensor(b"t", 0), num_tensors=1), "not made of F32 blocks"),
    "part of a block": (_file(tensors=_tensor(b"t", 31, kind=8), num_tensors=1), "not made of Q8_0 blocks"),
    "unknown format": (
        _file(tensors=_tensor(b"t", 32, kind=10), num_tensors=1),
        "'t' has type 10; supported",
    ),
    "huge tensor": (_file(tensors=_tensor(b"t", 2**63, 2**63), num_tensors=1), "'t' ends at byte"),
    "tensor past the end": (_file(tensors=_tensor(b"t", 1), num_tensors=1), "it is truncated"),
    "offset": (_file(tensors=_tensor(b"t", 1, offset=4), num_tensors=1) + bytes(64), "not aligned to 32"),
    "tensor twice": (_file(tensors=_tensor(b"t", 1) * 2, num_tensors=2) + bytes(64), "'t' is there twice"),
}


@pytest.mark.parametrize("case", _BAD_FILES)
def test_a_damaged_file_is_refused_with_its_name_and_fault(case: str, path: Path) -> None:
    content, fault = _BAD_FILES[case]
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=fault) as caught:
            _open(path, content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 1_000_000


def test_every_truncation_is_refused(path: Path) -> None:
    content = _written(path).read_bytes()
    end = max(info.offset + info.nbytes for info in GGUFFile(path).tensors.values())
    for length in range(end):
        with pytest.raises(ModelError):
            _open(path, content[:length])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_gives_a_file_or_a_model_error(data: st.DataObject, tmp_path: Path) -> None:
    intact = tmp_path / "intact.gguf"
    content = bytearray((intact if intact.exists() else _written(intact)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8)))
        content[place : place + len(patch)] = patch
    try:
        file = _open(tmp_path / "damaged.gguf", bytes(content))
    except ModelError:
        return
    for name, info in file.tensors.items():
        assert file.tensor(name).shape == info.shape


def test_the_tiny_llama_is_read_as_written(tiny_llama_path: Path) -> None:
    file = GGUFFile(tiny_llama_path)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(str(tiny_llama_path)).tensors}
    assert set(file.tensors) == set(reference)
    for name, tensor in reference.items():
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.tensor(name), expected)
