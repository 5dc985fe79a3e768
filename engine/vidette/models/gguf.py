"""A memory-mapped reader of GGUF files, versions 2 and 3: metadata, tensor directory, tensors.

The contract for files nobody vouches for: a file is read, or `ModelError` names the file and what is wrong
with it; nothing else is raised, and nothing is allocated that is larger than the file (counts and lengths
are compared with the bytes that are left before anything is made of them). The one thing that cannot be
promised of a mapping: a file that somebody truncates *in place* while it is mapped ends the process;
`pull` therefore replaces files, it never rewrites them.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.quants import FORMATS, TensorType, dequantize
from vidette.models.tensors import TensorInfo

Value = bool | int | float | str | list[str] | NDArray[Any]
"""A metadata value; an array is a list of strings or a NumPy array."""

_Scalar = TypeVar("_Scalar", bool, int, float, str)

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
# Fixed-size value types of the format: number -> NumPy type.
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    number: np.dtype(code)
    for number, code in enumerate(["<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"])
} | {10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8")}

_MIN_PAIR_BYTES: Final = 8 + 4 + 1  # an empty key, a type, a one-byte value
_MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8  # an empty name, a count, one dimension, a type, an offset
_MAX_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 << 16


class GGUFFile:
    """The header of a GGUF file, and its tensors on demand; the mapping lives as long as the object.

    Args:
        path: the file.

    Raises:
        ModelError: the file cannot be read, is damaged, or has a version or a type that is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped: ValueError.
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as exc:
            raise ModelError(f"cannot read the model file {path}: {exc}") from exc
        self._data = data
        reader = _Reader(path, data)
        self.version, num_tensors, num_pairs = reader.read_counts()
        self.metadata: Mapping[str, Value] = reader.read_metadata(num_pairs)
        alignment = self.value("general.alignment", int, _DEFAULT_ALIGNMENT)
        self.tensors: Mapping[str, TensorInfo] = reader.read_directory(num_tensors, alignment)

    def value(self, key: str, kind: type[_Scalar], default: _Scalar | None = None) -> _Scalar:
        """Return a scalar of the metadata.

        Args:
            key: name of the value.
            kind: bool, int, float or str; a value of another kind is an error.
            default: returned if the key is absent; without it, absence is an error.

        Raises:
            ModelError: absent without a default, or of another kind.
        """
        found = self.metadata.get(key, default)
        if found is None:
            raise ModelError(f"{self.path}: the metadata has no {key}")
        if type(found) is not kind:
            raise ModelError(f"{self.path}: {key} is {_brief(found)}, not of type {kind.__name__}")
        assert isinstance(found, kind)  # for readers of types: what was just checked, more exactly
        return found

    def strings(self, key: str) -> list[str]:
        """Return an array of strings of the metadata.

        Raises:
            ModelError: absent, or of another kind.
        """
        found = self.metadata.get(key)
        if not isinstance(found, list):
            raise ModelError(f"{self.path}: {key} is {_brief(found)}, not an array of strings")
        return found

    def integers(self, key: str) -> NDArray[np.int64]:
        """Return an array of integers of the metadata.

        Raises:
            ModelError: absent, or of another kind.
        """
        found = self.metadata.get(key)
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
            raise ModelError(f"{self.path}: {key} is {_brief(found)}, not an array of integers")
        return found.astype(np.int64)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, a read-only view of the mapped file.

        Raises:
            ModelError: the file has no such tensor.
        """
        info = self._info(name)
        return np.frombuffer(self._data, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Dequantise a tensor.

        Returns:
            A new float32 array of the tensor's shape.

        Raises:
            ModelError: the file has no such tensor.
        """
        info = self._info(name)
        return dequantize(self.raw(name), info.type).reshape(info.shape)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: there is no tensor {name!r}")
        return info


class _Reader:
    """A position in the mapped file; each read checks first that the bytes are there."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._pos = 0

    def read_counts(self) -> tuple[int, int, int]:
        """Read the fixed header: version, number of tensors, number of metadata pairs."""
        if self._data[self._take(4, "the magic number") : self._pos] != b"GGUF":
            self._fail(f"it starts with {self._data[:4]!r}, not with b'GGUF'")
        version = self._u32("the version")
        if version not in (2, 3):
            self._fail(f"its GGUF version is {version}; versions 2 and 3 (little-endian) are supported")
        num_tensors = self._count(_MIN_TENSOR_BYTES, "the number of tensors")
        num_pairs = self._count(_MIN_PAIR_BYTES, "the number of metadata pairs")
        return version, num_tensors, num_pairs

    def read_metadata(self, num_pairs: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for index in range(num_pairs):
            key = self._string(f"key {index} of the metadata")
            if key in metadata:
                self._fail(f"the metadata has {key!r} twice")
            metadata[key] = self._value(self._u32(f"the type of {key!r}"), key)
        return metadata

    def read_directory(self, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        if not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment}, not a power of two up to {_MAX_ALIGNMENT}")
        entries = [self._tensor(index) for index in range(num_tensors)]
        start = -(-self._pos // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for entry in entries:
            if entry.name in tensors:
                self._fail(f"the tensor {entry.name!r} is there twice")
            if entry.offset % alignment:
                self._fail(f"the tensor {entry.name!r} is at {entry.offset}, not aligned to {alignment}")
            end = start + entry.offset + entry.nbytes
            if end > self._size:
                self._fail(
                    f"the tensor {entry.name!r} ends at byte {end}, but the file has {self._size} bytes: "
                    "it is truncated"
                )
            tensors[entry.name] = entry._replace(offset=start + entry.offset)
        return tensors

    def _tensor(self, index: int) -> TensorInfo:
        """Read one entry of the directory; its offset is still relative to the data section."""
        name = self._string(f"the name of tensor {index}")
        what = f"the shape of {name!r}"
        num_dimensions = self._u32(what)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            self._fail(f"the tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(reversed([self._u64(what) for _ in range(num_dimensions)]))
        number = self._u32(f"the type of {name!r}")
        try:
            tensor_type = TensorType(number)
        except ValueError:
            supported = ", ".join(f"{known.name} ({known.value})" for known in TensorType)
            self._fail(f"the tensor {name!r} has type {number}; supported are {supported}")
        block = FORMATS[tensor_type]
        if 0 in shape or shape[-1] % block.values:
            self._fail(f"the tensor {name!r} of shape {shape} is not made of {tensor_type.name} blocks")
        nbytes = math.prod(shape) // block.values * block.nbytes
        return TensorInfo(name, shape, tensor_type, self._u64(f"the offset of {name!r}"), nbytes)

    def _value(self, value_type: int, key: str) -> Value:
        if value_type == _STRING:
            return self._string(key)
        if value_type == _ARRAY:
            return self._array(key)
        dtype = self._dtype(value_type, key)
        start = self._take(dtype.itemsize, key)
        scalar: bool | int | float = np.frombuffer(self._data, dtype=dtype, count=1, offset=start)[0].item()
        return scalar

    def _array(self, key: str) -> list[str] | NDArray[Any]:
        value_type = self._u32(f"the type of the elements of {key!r}")
        if value_type == _STRING:
            return self._strings(self._count(8, key), key)
        if value_type == _ARRAY:
            self._fail(f"{key!r} is an array of arrays, which is not supported")
        dtype = self._dtype(value_type, key)
        count = self._count(dtype.itemsize, key)
        start = self._take(count * dtype.itemsize, key)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=start).copy()

    def _strings(self, count: int, key: str) -> list[str]:
        # Vocabularies have 10^5 strings: this loop is the header's whole cost, so it works on locals.
        data, size, pos, unpack = self._data, self._size, self._pos, _U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                pos = start + unpack(data, pos)[0]
                if pos > size:
                    self._fail(f"{key!r} is cut off: the file is truncated or damaged")
                strings.append(data[start:pos].decode())
        except struct.error:
            self._fail(f"{key!r} is cut off: the file is truncated or damaged")
        except UnicodeDecodeError as exc:
            self._fail(f"{key!r} is not UTF-8: {exc}")
        self._pos = pos
        return strings

    def _string(self, what: str) -> str:
        length = self._count(1, what)
        start = self._take(length, what)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError as exc:
            self._fail(f"{what} is not UTF-8: {exc}")

    def _dtype(self, value_type: int, key: str) -> np.dtype[Any]:
        if value_type not in _DTYPES:
            self._fail(f"{key!r} has the unknown type {value_type}")
        return _DTYPES[value_type]

    def _count(self, min_bytes: int, what: str) -> int:
        """Read a count of things of at least `min_bytes` each; refuse one that the file cannot hold."""
        count = self._u64(what)
        if count * min_bytes > self._size - self._pos:
            self._fail(
                f"{what} claims {count} entries, more than the {self._size - self._pos} bytes that are left "
                "can hold: the file is truncated or damaged"
            )
        return count

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8, what))[0]
        return value

    def _take(self, nbytes: int, what: str) -> int:
        """Advance over `nbytes` bytes and return where they start."""
        start = self._pos
        if nbytes > self._size - start:
            self._fail(f"it ends within {what}: it is truncated or damaged")
        self._pos = start + nbytes
        return start

    def _fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{self._path} is not a usable GGUF file: {problem}")


def _brief(value: object) -> str:
    """Show a value in a message without flooding it."""
    if value is None:
        return "absent"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
