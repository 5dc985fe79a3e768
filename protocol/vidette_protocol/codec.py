"""`Codec`: messages to bytes and back, one closed union per link and direction.

There is no registry: a codec is a value, built once from a list of classes and passed to whoever needs
it. What it decodes is one of its classes or a `DecodeError`, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

import msgspec

from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import ExtHooks, Outside
from vidette_protocol.ext.bundle import Part, is_bundle, join_bundle, split_bundle
from vidette_protocol.messages import PROTOCOL_VERSION, ControlOutput, ControlReq, Hello, Message
from vidette_protocol.messages.bulk import LINK_MESSAGES
from vidette_protocol.messages.catalogue import CATALOGUE, FRONT_TO_SCHEDULER, SCHEDULER_TO_FRONT
from vidette_protocol.messages.pickled import PickledBytes, PickleWrapper
from vidette_protocol.messages.tags import FIRST_USER_TAG
from vidette_protocol.schema import describe, fingerprint_of, misfit


class Codec:
    """Encodes and decodes the messages of one link.

    Args:
        sends: classes that this side sends.
        receives: classes that the other side sends.
        hooks: how arrays and tensors in messages are written and read; None: onto the CPU, copied.
        bulk: whether large arrays and tensors lie beside the message, and the link may share memory for them.
            Such a codec is used by one thread.
        allow_pickle: whether PickleWrapper may travel, as bytes that nothing here unpickles.
    """

    def __init__(
        self,
        *,
        sends: Iterable[type[Message]],
        receives: Iterable[type[Message]],
        hooks: ExtHooks | None = None,
        bulk: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        hooks = ExtHooks() if hooks is None else hooks
        self._outside = Outside() if bulk else None
        if bulk:
            hooks = ExtHooks(devices=hooks.devices, copy=hooks.copy, outside=self._outside)
        self.hooks = hooks
        self.bulk = bulk
        self.allow_pickle = allow_pickle
        self.sends = frozenset(sends) | frozenset(LINK_MESSAGES if bulk else ())
        self.receives = frozenset(receives) | frozenset(LINK_MESSAGES if bulk else ())
        self.schema = describe(self.sends | self.receives)
        """What the other side has to know alike, at least in the beginning of each class."""
        self.fingerprint = fingerprint_of(self.schema)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._enc_hook)
        union = reduce(or_, sorted(self.receives, key=lambda cls: cls.__name__))
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
            union, ext_hook=hooks.ext_hook, dec_hook=self._dec_hook
        )

    def mirrored(self) -> Codec:
        """Return the codec of the other side: what this one sends it receives, and the other way round."""
        return self._with(sends=self.receives, receives=self.sends)

    def copy(self) -> Codec:
        """Return another codec of the same side."""
        return self._with(sends=self.sends, receives=self.receives)

    def _with(self, *, sends: Iterable[type[Message]], receives: Iterable[type[Message]]) -> Codec:
        return Codec(
            sends=sends, receives=receives, hooks=self.hooks, bulk=self.bulk, allow_pickle=self.allow_pickle
        )

    def _enc_hook(self, value: object) -> object:
        if not isinstance(value, PickledBytes):
            return self.hooks.enc_hook(value)
        if not self.allow_pickle:
            raise LocalProtocolError("a PickleWrapper is not sent; a codec with allow_pickle=True would")
        return bytes(value)

    def _dec_hook(self, kind: type, value: object) -> object:
        if kind is not PickledBytes:
            return self.hooks.dec_hook(kind, value)
        if not self.allow_pickle:
            raise DecodeError("a PickleWrapper came; only a codec with allow_pickle=True takes one")
        if not isinstance(value, bytes):
            raise TypeError(f"Expected `bytes`, got `{type(value).__name__}`")
        return PickledBytes(value)

    def encode(self, message: Message) -> bytes:
        """Turn a message into the body of a frame.

        Raises:
            LocalProtocolError: this side does not send such messages, or this one holds what cannot travel
                (too large a number, half a surrogate pair, a value of another type).
        """
        if self._outside is None:
            return self._encode(message)
        encoded, buffers = self.encode_parts(message)
        if not buffers:
            return encoded
        return b"".join(join_bundle(encoded, [Part(raw.nbytes, raw=raw) for raw in buffers]))

    def encode_parts(self, message: Message) -> tuple[bytes, list[memoryview]]:
        """Turn a message into bytes, and the buffers beside it, which are not copied; without bulk, none.

        Raises:
            LocalProtocolError: as for `encode`.
        """
        try:
            encoded = self._encode(message)
        finally:
            buffers = self._take_buffers()
        return encoded, buffers

    def _encode(self, message: Message) -> bytes:
        if type(message) not in self.sends:
            names = ", ".join(sorted(cls.__name__ for cls in self.sends))
            raise LocalProtocolError(f"{type(message).__name__} does not travel this way; {names} do")
        try:
            return self._encoder.encode(message)
        except (OverflowError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise LocalProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error

    def _take_buffers(self) -> list[memoryview]:
        if self._outside is None:
            return []
        buffers, self._outside.buffers = self._outside.buffers, []
        return buffers

    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        """Turn the body of a frame into a message; packed columns stay views into the frame.

        Raises:
            DecodeError: these bytes are no message of this link, or columns of it contradict each other.
        """
        if self._outside is None or not is_bundle(frame):
            return self._decode(frame)
        encoded, parts = split_bundle(frame)
        buffers = [part.raw for part in parts if part.raw is not None]
        if len(buffers) < len(parts):
            raise DecodeError("a buffer in shared memory, of which there is none")
        return self.decode_parts(encoded, buffers)

    def decode_parts(self, encoded: memoryview, buffers: list[memoryview]) -> Message:
        """Turn bytes, and the buffers beside them, into a message; arrays and tensors are views of these.

        Raises:
            DecodeError: as for `decode`.
        """
        assert self._outside is not None
        self._outside.buffers = buffers
        try:
            return self._decode(encoded)
        finally:
            self._take_buffers()

    def _decode(self, frame: bytes | bytearray | memoryview) -> Message:
        try:
            message = self._decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeError(f"a frame of {len(frame)} bytes is no message of this link: {error}") from error
        fault = message.check_columns()
        if fault is not None:
            raise DecodeError(f"{type(message).__name__}: {fault}")
        return message

    def check_hello(self, hello: Message, *, role: str) -> Hello:
        """Return the other side's Hello if it can be talked to.

        A side whose classes only have fields appended, or lack those that ours have appended, can be.

        Args:
            hello: the first message of the link.
            role: who should be there.

        Raises:
            RemoteProtocolError: it is no Hello, of another role, or of another version.
        """
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"a link opens with Hello, not with {type(hello).__name__}")
        if hello.fingerprint == self.fingerprint:
            fault = None
        elif not hello.schema:
            fault = "it does not describe its messages"
        else:
            fault = misfit(self.schema, hello.schema, self.sends | self.receives)
        if hello.version != PROTOCOL_VERSION or fault is not None:
            why = "" if fault is None else f" ({fault})"
            raise RemoteProtocolError(
                f"the {hello.role} (pid {hello.pid}) speaks protocol {hello.version}/{hello.fingerprint}, "
                f"this side {PROTOCOL_VERSION}/{self.fingerprint}{why}: "
                "install the same version of vidette on both sides"
            )
        if hello.role != role:
            raise RemoteProtocolError(f"the {role} should be at this link, but {hello.role!r} is")
        return hello


def front_codec() -> Codec:
    """Return the codec of a front's link to its scheduler: what `hook_custom_types` begins with."""
    return Codec(sends=FRONT_TO_SCHEDULER, receives=SCHEDULER_TO_FRONT, bulk=True)


def hook_custom_types(
    codec: Codec, *types: type[Message], sends: bool = True, receives: bool = True
) -> Codec:
    """Return a codec that knows message classes of a user's own as well; the given one stays as it is.

    Args:
        codec: what to begin with.
        types: subclasses of Message with integer tags from FIRST_USER_TAG on; with a ControlReq comes its
            `output`.
        sends: whether this side sends them.
        receives: whether the other side sends them.

    Raises:
        LocalProtocolError: one of them is not such a class, or its tag or name is taken.
    """
    more: list[type[Message]] = []
    for cls in types:
        _check_custom(cls)
        more.append(cls)
        if issubclass(cls, ControlReq):
            _check_custom(cls.output)
            more.append(cls.output)
    known: set[type[Message]] = {*CATALOGUE, *LINK_MESSAGES, PickleWrapper, *codec.sends, *codec.receives}
    for cls in more:
        for other in known - {cls}:
            if other.__struct_config__.tag == cls.__struct_config__.tag:
                raise LocalProtocolError(f"{cls.__name__} has the tag of {_path(other)}")
            if other.__name__ == cls.__name__:
                raise LocalProtocolError(f"{_path(cls)} has the name of {_path(other)}")
        known.add(cls)
    try:
        return codec._with(
            sends=codec.sends.union(more if sends else ()),
            receives=codec.receives.union(more if receives else ()),
        )
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"these messages cannot travel: {error}") from error


def _check_custom(cls: type) -> None:
    if not issubclass(cls, Message):
        raise LocalProtocolError(f"{_path(cls)} is no subclass of Message")
    config = cls.__struct_config__
    if type(config.tag) is not int or config.tag < FIRST_USER_TAG:
        raise LocalProtocolError(
            f"{_path(cls)} has the tag {config.tag!r}; it must be an integer from {FIRST_USER_TAG} on"
        )
    if not (config.array_like and config.frozen):
        raise LocalProtocolError(f"{_path(cls)} must be array_like and frozen, as Message is")
    if issubclass(cls, ControlOutput):
        for field in msgspec.structs.fields(cls):
            if field.required and field.name != "id":
                raise LocalProtocolError(
                    f"{_path(cls)}.{field.name} needs a default: a failure is answered without it"
                )
    if issubclass(cls, ControlReq) and not issubclass(getattr(cls, "output", object), ControlOutput):
        raise LocalProtocolError(
            f"{_path(cls)} does not name the class of its answer: `output: ClassVar = ...`, a ControlOutput"
        )


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
