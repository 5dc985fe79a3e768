"""State markers: how tuple, torch.Size, dtype and device survive where only dicts and lists travel.

Inside `ModelData`, and inside the state of a descriptor, such a value is written as a dict of one entry:

    (1, [2])              {"__tuple__": [1, [2]]}
    torch.Size([2, 3])    {"__torch_size__": [2, 3]}
    torch.float16         {"__torch_dtype__": "float16"}
    torch.device("cpu")   {"__torch_device__": "cpu"}
    np.dtype("<f4")       {"__np_dtype__": "<f4"}

A caller's dict that looks like one of them is wrapped once more, so that it comes back as the dict it was:

    {"__tuple__": 5}      {"__escaped_dict__": {"__tuple__": 5}}

Everywhere else nothing is marked and nothing is looked at: there a tuple comes back as a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Final, TypeGuard

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext import ndarrays, tensors
from vidette_protocol.ext.layout import MAX_BYTES

TUPLE: Final = "__tuple__"
SIZE: Final = "__torch_size__"
TORCH_DTYPE: Final = "__torch_dtype__"
DEVICE: Final = "__torch_device__"
NUMPY_DTYPE: Final = "__np_dtype__"
DICT: Final = "__escaped_dict__"
MARKERS: Final = frozenset({TUPLE, SIZE, TORCH_DTYPE, DEVICE, NUMPY_DTYPE, DICT})

MAX_NESTING: Final = 32
"""How deep dicts, lists and tuples may lie in each other."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


class ModelData(MutableMapping[str, object]):
    """A mapping of names to values of any kind that travel; tuples and their like come back as they were.

    Args:
        values: copied, one level deep.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = {} if values is None else dict(values)

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ModelData({self._values!r})"


def mark_values(values: Mapping[str, object], devices: Collection[str]) -> dict[str, object]:
    """Return the values of a mapping with markers in them; the mapping itself is never taken for one.

    Args:
        values: tensors and the like stay as they are, for the encoder.
        devices: those that may be named, beside the CPU.

    Raises:
        TypeError: a key is not a str, or a dtype or device does not travel.
        ValueError: values are nested deeper than `MAX_NESTING`.
    """
    for key in values:
        if type(key) is not str:
            raise TypeError(f"{key!r} is no name of a value; names are str")
    return {key: _mark(value, devices, MAX_NESTING) for key, value in values.items()}


def _mark(value: object, devices: Collection[str], depth: int) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, dict | list | tuple):
        if not depth:
            raise ValueError(f"values are nested deeper than {MAX_NESTING}")
        if isinstance(value, dict):
            marked = {key: _mark(inner, devices, depth - 1) for key, inner in value.items()}
            return {DICT: marked} if _is_marker(marked) else marked
        items = [_mark(inner, devices, depth - 1) for inner in value]
        if isinstance(value, list):
            return items
        return {SIZE if _named(kind) == "torch.Size" else TUPLE: items}
    if _named(kind) == "torch.dtype":
        return {TORCH_DTYPE: tensors.name_dtype(value)}
    if _named(kind) == "torch.device":
        if str(value) != "cpu" and str(value) not in devices:
            raise TypeError(f"{value!r} does not travel; the devices that may be named: {sorted(devices)}")
        return {DEVICE: str(value)}
    if kind.__module__ == "numpy.dtypes":
        return {NUMPY_DTYPE: ndarrays.name_dtype(value)}
    return value


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_marker(value: dict[object, object]) -> bool:
    return len(value) == 1 and not MARKERS.isdisjoint(value)


def unmark_values(values: object, devices: Collection[str]) -> dict[str, object]:
    """Return the values of a mapping with their markers resolved.

    Args:
        values: what was decoded.
        devices: those that may be named, beside the CPU.

    Raises:
        DecodeError: it is no mapping of names, or a marker is malformed or nested too deep, or names a
            dtype or device that is not allowed.
        ImportError: a marker needs a package that is not installed here.
    """
    if not _is_named(values):
        raise DecodeError(f"a {type(values).__name__} is no mapping of names to values")
    return {key: _unmark(value, devices, MAX_NESTING) for key, value in values.items()}


def _is_named(values: object) -> TypeGuard[dict[str, object]]:
    return isinstance(values, dict) and all(type(key) is str for key in values)


def _unmark(value: object, devices: Collection[str], depth: int) -> object:
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise DecodeError(f"values are nested deeper than {MAX_NESTING}")
    if isinstance(value, list):
        return [_unmark(inner, devices, depth - 1) for inner in value]
    if not _is_marker(value):
        return {key: _unmark(inner, devices, depth - 1) for key, inner in value.items()}
    ((marker, inner),) = value.items()
    match marker, inner:
        case "__escaped_dict__", dict():
            return {key: _unmark(innermost, devices, depth - 1) for key, innermost in inner.items()}
        case "__tuple__", list():
            return tuple(_unmark(item, devices, depth - 1) for item in inner)
        case "__torch_size__", list() if all(type(dim) is int and 0 <= dim <= MAX_BYTES for dim in inner):
            return tensors.make_size(inner)
        case "__torch_dtype__", str():
            return tensors.find_dtype(inner)
        case "__torch_device__", str():
            return tensors.find_device(inner, devices)
        case "__np_dtype__", str():
            return ndarrays.find_dtype(inner)
    raise DecodeError(f"a {type(inner).__name__} as {marker!r} is malformed")
