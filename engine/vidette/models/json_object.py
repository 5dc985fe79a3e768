"""Objects in JSON files that nobody vouches for: a value has the expected kind, or `ModelError` says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from vidette.errors import ModelError

_MAX_BYTES: Final = 64 << 20
MAX_SIZE: Final = 1 << 24
"""Largest size of a model that is believed (layers, values, tokens of context)."""

_Value = TypeVar("_Value", bool, str)


class JSONObject:
    """Values by key; what is null counts as absent.

    Args:
        path: the file they come from; messages name it.
        values: the object.
        place: where in the file it is, such as "text_config.".
    """

    def __init__(self, path: Path, values: Mapping[str, object], place: str = "") -> None:
        self.path = path
        self.values = values
        self._place = place

    def has(self, key: str) -> bool:
        """Return whether there is a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer.

        Raises:
            ModelError: absent without a default, or of another kind.
        """
        return self._integer(key, self._required(key, default))

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive integer, MAX_SIZE at most.

        Raises:
            ModelError: absent without a default, of another kind, or out of bounds.
        """
        found = self.integer(key, default)
        if not 0 < found <= MAX_SIZE:
            raise self._wrong(key, found, f"from 1 to {MAX_SIZE}")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            ModelError: absent without a default, of another kind, or not finite.
        """
        found = self._required(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._wrong(key, found, "a number")
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong(key, found, "a finite number")
        return number

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        """Return true or false.

        Raises:
            ModelError: absent without a default, or of another kind.
        """
        return self._of(bool, key, self._required(key, default), "true or false")

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string.

        Raises:
            ModelError: absent without a default, or of another kind.
        """
        return self._of(str, key, self._required(key, default), "a string")

    def strings(self, key: str) -> list[str]:
        """Return a list of strings.

        Raises:
            ModelError: absent, or of another kind.
        """
        return [self._of(str, key, item, "a list of strings") for item in self._list(key)]

    def integers(self, key: str) -> list[int]:
        """Return a list of integers.

        Raises:
            ModelError: absent, or of another kind.
        """
        return [self._integer(key, item) for item in self._list(key)]

    def child(self, key: str) -> JSONObject:
        """Return an object in this one; an absent one is empty.

        Raises:
            ModelError: of another kind.
        """
        found = self.values.get(key)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise self._wrong(key, found, "an object")
        return JSONObject(self.path, found, f"{self._place}{key}.")

    def _list(self, key: str) -> list[object]:
        found = self._required(key, None)
        if not isinstance(found, list):
            raise self._wrong(key, found, "a list")
        return found

    def _integer(self, key: str, found: object) -> int:
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong(key, found, "an integer")
        return found

    def _of(self, kind: type[_Value], key: str, found: object, what: str) -> _Value:
        if not isinstance(found, kind):
            raise self._wrong(key, found, what)
        return found

    def _required(self, key: str, default: object) -> object:
        found = self.values.get(key)
        if found is None:
            found = default
        if found is None:
            raise ModelError(f"{self.path}: there is no {self._place}{key}")
        return found

    def _wrong(self, key: str, found: object, what: str) -> ModelError:
        return ModelError(f"{self.path}: {self._place}{key} is {_brief(found)}, not {what}")


def read_json(path: Path) -> JSONObject:
    """Read a file that holds one JSON object.

    Raises:
        ModelError: the file cannot be read, is absurdly long, or holds something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise ModelError(f"cannot read {path}: {exc}") from exc
    if len(data) > _MAX_BYTES:
        raise ModelError(f"{path} has more than {_MAX_BYTES} bytes, too many for what it should hold")
    return parse_json(path, data)


def parse_json(path: Path, data: bytes) -> JSONObject:
    """Parse one JSON object; a key that is there twice is an error.

    Args:
        path: the file it comes from.
        data: UTF-8.

    Raises:
        ModelError: it is something else.
    """
    try:
        found = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"{path} holds no usable JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds {type(found).__name__}, not a JSON object")
    return JSONObject(path, found)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _brief(value: object) -> str:
    """Show a value in a message without flooding it."""
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "an absurdly large integer"
    return json.dumps(value)[:60] if isinstance(value, bool | int | float | str) else type(value).__name__
