"""The codecs to beat: pickle, and the documented classes under msgspec as SGLang has them.

This is the one module of the product that pickles (architecture, section 6: the baseline to beat), and what
it unpickles was pickled by itself, in this process or in the one that it was started by.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, NamedTuple, Protocol, get_type_hints

import msgspec

from vidette.bench.documented import SamplingParams, TokenizedRequest, TokenStep
from vidette_protocol.ext import ExtHooks

PICKLE_4: Final = 4
"""What our source documents name, and what pyzmq's `send_pyobj` has by default."""
PICKLE_5: Final = 5


class Coder(Protocol):
    """Something that turns messages into bytes and back."""

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a message."""
        ...

    def decode(self, frame: Any) -> Any:
        """Return the message of bytes."""


class PickleCodec(NamedTuple):
    """Whatever object, pickled.

    Args:
        protocol: of pickle.
    """

    protocol: int = PICKLE_4

    def encode(self, message: Any) -> bytes:
        """Return the pickle of an object."""
        return pickle.dumps(message, self.protocol)

    def decode(self, frame: bytes) -> Any:
        """Return the object of a pickle."""
        return pickle.loads(frame)


class StructCodec:
    """A documented class as SGLang sends it with msgspec: an array that opens with the class's name.

    Args:
        documented: a message; `message` is the same as a struct.
        arrays: whether token ids are arrays, which travel as extension 1, rather than lists of integers.
    """

    def __init__(self, documented: TokenizedRequest | TokenStep, *, arrays: bool) -> None:
        hooks = ExtHooks()
        kind = _struct_of(type(documented), arrays=arrays)
        self.message: Final = msgspec.convert(documented, kind, from_attributes=True, dec_hook=_to_array)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=hooks.enc_hook)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            kind, ext_hook=hooks.ext_hook, dec_hook=hooks.dec_hook
        )

    def encode(self, message: Any) -> bytes:
        """Return the MessagePack of a struct."""
        return self._encoder.encode(message)

    def decode(self, frame: bytes) -> Any:
        """Return the struct of MessagePack."""
        return self._decoder.decode(frame)


_TAGS: Final[Mapping[type, str]] = {
    TokenizedRequest: "TokenizedGenerateReqInput",
    TokenStep: "BatchTokenIDOutput",
}
"""Sampling parameters have none: they travel as a map of what is not default."""
_TOKENS: Final = frozenset({"input_ids", "decode_ids", "output_ids"})
_ARRAYS: Final[Mapping[object, object]] = {list[int]: array, list[list[int]]: list[array]}  # type: ignore[type-arg]


def _struct_of(documented: type, *, arrays: bool) -> type[msgspec.Struct]:
    """Return the struct with the fields of a documented class."""
    hints = get_type_hints(documented)
    described: list[Any] = []
    for field in fields(documented):
        kind = hints[field.name]
        if kind is SamplingParams:
            kind = _struct_of(kind, arrays=arrays)
        elif arrays and field.name in _TOKENS:
            kind = _ARRAYS[kind]
        described.append((field.name, kind, *(() if field.default is MISSING else (field.default,))))
    tag = _TAGS.get(documented)
    return msgspec.defstruct(
        documented.__name__,
        described,
        tag=tag,
        array_like=tag is not None,
        omit_defaults=tag is None,
        kw_only=True,
    )


def _to_array(_: type, values: list[int]) -> array[int]:
    return array("q", values)
