"""`Codec`: messages to bytes and back, one closed union per link and direction.

There is no registry: a codec is a value, built once from a list of classes and passed to whoever needs
it. What it decodes is one of its classes or a `DecodeError`, whatever the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import get_type_hints

import msgspec

from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import ExtHooks
from vidette_protocol.messages import (
    PROTOCOL_VERSION,
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    Failed,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Hello,
    Message,
    Ready,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    TokenizedGenerateReqInput,
)

# What may travel on each link, by direction.
FRONT_TO_SCHEDULER: tuple[type[Message], ...] = (
    Hello,
    TokenizedGenerateReqInput,
    AbortReq,
    HeartbeatReq,
    FreezeGCReq,
    ShutdownReq,
)
SCHEDULER_TO_FRONT: tuple[type[Message], ...] = (Hello, Ready, Failed)
SCHEDULER_TO_DETOKENIZER: tuple[type[Message], ...] = (
    Hello,
    BatchTokenIDOutput,
    HeartbeatReq,
    FreezeGCReq,
    ShutdownReq,
)
DETOKENIZER_TO_SCHEDULER: tuple[type[Message], ...] = (Hello,)
DETOKENIZER_TO_FRONT: tuple[type[Message], ...] = (
    Hello,
    Ready,
    Failed,
    BatchStrOutput,
    HeartbeatReq,
    FreezeGCReq,
)
FRONT_TO_DETOKENIZER: tuple[type[Message], ...] = (Hello,)

_PARTS: tuple[type[msgspec.Struct], ...] = (FinishReason, SamplingParams, SchedulerLedger)
"""Structs that travel inside messages."""


class Codec:
    """Encodes and decodes the messages of one link.

    Args:
        sends: classes that this side sends.
        receives: classes that the other side sends.
        hooks: how arrays and tensors in messages are written and read; None: onto the CPU, copied.
    """

    def __init__(
        self,
        *,
        sends: Iterable[type[Message]],
        receives: Iterable[type[Message]],
        hooks: ExtHooks | None = None,
    ) -> None:
        hooks = ExtHooks() if hooks is None else hooks
        self.sends = frozenset(sends)
        self.receives = frozenset(receives)
        self.fingerprint = fingerprint(self.sends | self.receives)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=hooks.enc_hook)
        union = reduce(or_, sorted(self.receives, key=lambda cls: cls.__name__))
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
            union, ext_hook=hooks.ext_hook, dec_hook=hooks.dec_hook
        )

    def encode(self, message: Message) -> bytes:
        """Turn a message into the body of a frame.

        Raises:
            LocalProtocolError: this side does not send such messages, or this one holds what cannot travel
                (too large a number, half a surrogate pair, a value of another type).
        """
        if type(message) not in self.sends:
            names = ", ".join(sorted(cls.__name__ for cls in self.sends))
            raise LocalProtocolError(f"{type(message).__name__} does not travel this way; {names} do")
        try:
            return self._encoder.encode(message)
        except (OverflowError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise LocalProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error

    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        """Turn the body of a frame into a message; packed columns stay views into the frame.

        Raises:
            DecodeError: these bytes are no message of this link, or columns of it contradict each other.
        """
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

        Args:
            hello: the first message of the link.
            role: who should be there.

        Raises:
            RemoteProtocolError: it is no Hello, of another role, or of another version.
        """
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"a link opens with Hello, not with {type(hello).__name__}")
        if hello.version != PROTOCOL_VERSION or hello.fingerprint != self.fingerprint:
            raise RemoteProtocolError(
                f"the {hello.role} (pid {hello.pid}) speaks protocol {hello.version}/{hello.fingerprint}, "
                f"this side {PROTOCOL_VERSION}/{self.fingerprint}: "
                "install the same version of vidette on both sides"
            )
        if hello.role != role:
            raise RemoteProtocolError(f"the {role} should be at this link, but {hello.role!r} is")
        return hello


def fingerprint(classes: Iterable[type[msgspec.Struct]] = ()) -> str:
    """Return a hash over names, tags, and order and types of the fields of all message classes.

    Args:
        classes: message classes of a user's own, beyond those of this package.
    """
    known = {
        *FRONT_TO_SCHEDULER,
        *SCHEDULER_TO_FRONT,
        *SCHEDULER_TO_DETOKENIZER,
        *DETOKENIZER_TO_SCHEDULER,
        *DETOKENIZER_TO_FRONT,
        *_PARTS,
        *classes,
    }
    lines = []
    for cls in known:
        hints = get_type_hints(cls)
        fields = ", ".join(f"{name}: {hints[name]}" for name in cls.__struct_fields__)
        lines.append(f"{cls.__struct_config__.tag} {cls.__name__}({fields})")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
