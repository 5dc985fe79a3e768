"""The reader of safetensors files: what the reference library wrote is read, what is damaged is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from vidette.errors import ModelError
from vidette.models.quants import TensorType, dequantize
from vidette.models.safetensors import SafetensorsFile


def write(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> Path:
    """Write a file by hand, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(start: int, end: int, *, dtype: str = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def test_what_the_reference_wrote_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors: dict[str, Any] = {
        "matrix": rng.standard_normal((3, 5), dtype=np.float32),
        "half": rng.standard_normal((2, 3, 1), dtype=np.float32).astype(np.float16),
        "é": rng.standard_normal(7, dtype=np.float32),
        "none": np.empty((0, 4), np.float32),
        "scalar": np.array(4, np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        info = file.tensors[name]
        assert (info.name, info.shape, info.nbytes) == (name, tensor.shape, tensor.nbytes)
        values = dequantize(file.raw(name), info.type).reshape(info.shape)
        assert np.array_equal(values, tensor.astype(np.float32))
    assert not file.raw("matrix").flags.writeable
    with pytest.raises(ModelError, match="there is no tensor 'other'"):
        file.raw("other")


def test_brain_floats(tmp_path: Path) -> None:
    path = write(tmp_path / "b", {"x": entry(0, 4, dtype="BF16")}, bytes.fromhex("803f 00c0"))
    file = SafetensorsFile(path)
    assert file.tensors["x"].type is TensorType.BF16
    assert dequantize(file.raw("x"), TensorType.BF16).tolist() == [1.0, -2.0]


def test_a_view_outlives_the_reader(tmp_path: Path) -> None:
    raw = SafetensorsFile(write(tmp_path / "b", {"x": entry(0, 8)}, bytes(range(8)))).raw("x")
    (tmp_path / "b").unlink()
    assert raw.tolist() == list(range(8))


_DAMAGED: dict[str, tuple[Mapping[str, Any] | bytes, int, str]] = {
    "no JSON": (b"{", 0, "holds no usable JSON"),
    "no UTF-8": (b'{"\xff": 1}', 0, "holds no usable JSON"),
    "deep": (b'{"a":' * 100_000, 0, "holds no usable JSON"),
    "no object": (b"[]", 0, "holds list, not a JSON object"),
    "twice": (b'{"a": 1, "a": 1}', 0, "a key is there twice"),
    "no entry": ({"x": 3}, 0, "x is 3, not an object"),
    "null": ({"x": None}, 0, "there is no x.dtype"),
    "dtype": ({"x": entry(0, 8, dtype="F64", shape=(1,))}, 8, "has type 'F64'; supported are F32, F16, BF16"),
    "number": ({"x": entry(0, 8) | {"dtype": 3}}, 8, "x.dtype is 3, not a string"),
    "shape": ({"x": entry(0, 8, shape=(-2,))}, 8, "'x' has an impossible shape"),
    "huge": ({"x": entry(0, 8, shape=(1 << 40, 1 << 40, 0))}, 8, "'x' has an impossible shape"),
    "dimensions": ({"x": entry(0, 4, shape=[1] * 9)}, 4, "'x' has an impossible shape"),
    "fraction": ({"x": entry(0, 8, shape=(2.0,))}, 8, "x.shape is 2.0, not an integer"),
    "true": ({"x": entry(0, 4, shape=(True,))}, 4, "x.shape is true, not an integer"),
    "no shape": ({"x": entry(0, 8) | {"shape": 2}}, 8, "x.shape is 2, not a list"),
    "size": ({"x": entry(0, 12)}, 12, "of shape .* has the wrong data_offsets"),
    "offsets": ({"x": entry(0, 8) | {"data_offsets": [0, 8, 8]}}, 8, "has the wrong data_offsets"),
    "absurd": ({"x": entry(10**4000, 10**4000 + 8)}, 8, "has the wrong data_offsets"),
    "negative": ({"x": entry(-8, 0)}, 8, "has the wrong data_offsets"),
    "overlap": ({"x": entry(0, 8), "y": entry(4, 12)}, 12, "'y' at 4 overlaps with others"),
    "same": ({"x": entry(0, 8), "y": entry(0, 8)}, 8, "at 0 overlaps with others"),
    "gap": ({"x": entry(0, 8), "y": entry(12, 20)}, 20, "'y' at 12 leaves a gap before it"),
    "late": ({"x": entry(4, 12)}, 12, "'x' at 4 leaves a gap before it"),
    "cut": ({"x": entry(0, 8)}, 7, "it is truncated or damaged"),
    "more": ({"x": entry(0, 8)}, 9, "it is truncated or damaged"),
}


@pytest.mark.parametrize("case", _DAMAGED)
def test_what_is_damaged_is_refused(case: str, tmp_path: Path) -> None:
    header, length, fault = _DAMAGED[case]
    path = write(tmp_path / "model.safetensors", header, bytes(length))
    with pytest.raises(ModelError, match=fault) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 3) + b"{}", struct.pack("<Q", 1 << 63)])
def test_what_is_cut_off_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=str(path)):
        SafetensorsFile(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read the model file"):
        SafetensorsFile(tmp_path / "none")


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 220), st.integers(0, 255)), min_size=1, max_size=3))
def test_any_bytes_are_read_or_refused(changes: list[tuple[int, int]], tmp_path: Path) -> None:
    """A file with some bytes changed gives tensors that lie inside it, or ModelError."""
    path = write(tmp_path / "any", {"x": entry(0, 8), "y": entry(8, 12, dtype="BF16")}, bytes(12))
    data = bytearray(path.read_bytes())
    for place, byte in changes:
        data[place % len(data)] = byte
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
    except ModelError:
        return
    for name, info in file.tensors.items():
        assert len(file.raw(name)) == info.nbytes
