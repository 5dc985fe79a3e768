"""Bytes against the codec: no matter what comes, it is a message of the link or a `DecodeError`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from vidette_fuzz.samples import EVERY, LINKS, SAMPLES
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError
from vidette_protocol.messages import BaseBatchReq, BatchLayout, BatchStrOutput, BatchTokenIDOutput, Message


class CodecReport(NamedTuple):
    """What the codec fuzzer found.

    Args:
        frames: how many were decoded.
        messages: how many of them were messages.
        violations: a sentence for each frame that broke the contract.
    """

    frames: int
    messages: int
    violations: tuple[str, ...]


class ContractBroken(AssertionError):  # noqa: N818  it is a finding
    """A frame is neither a message of the link nor refused as it should be."""


def run_codec(frames: int, seed: int = 0) -> CodecReport:
    """Decode frames that were tampered with, on every link, and where every message may come.

    Args:
        frames: how many.
        seed: the same seed tries the same frames.
    """
    random = Random(seed)
    links = [_Link(classes) for classes in (*LINKS.values(), EVERY, EVERY)]
    strangers = [frame for link in links for frame in link.frames]
    messages, violations = 0, []
    for _ in range(frames):
        link = random.choice(links)
        frame = tamper(random.choice(link.frames), random, others=strangers)
        try:
            messages += check_frame(link.codec, frame)
        except ContractBroken as broken:
            violations.append(f"{broken}: {frame.hex()}")
    return CodecReport(frames, messages, tuple(violations))


def check_frame(codec: Codec, frame: bytes) -> bool:
    """Return whether a frame is a message of the link, and see that the decoding keeps its contract.

    A frame is a message of the link or raises `DecodeError`. A message can be read whole, by each of its
    views, can be taken apart if it is a batch, and survives another round trip unchanged.

    Args:
        codec: one that sends what it receives.
        frame: any bytes.

    Raises:
        ContractBroken: it does not.
    """
    try:
        message = codec.decode(frame)
    except DecodeError:
        return False
    except Exception as error:
        raise ContractBroken(f"decoding raises {type(error).__name__}: {error}") from error
    name = type(message).__name__
    if type(message) not in codec.receives:
        raise ContractBroken(f"a {name} came, which does not travel on this link")
    try:
        _read(message)
        first = codec.encode(message)
        second = codec.encode(codec.decode(first))
    except Exception as error:
        raise ContractBroken(f"reading a {name} raises {type(error).__name__}: {error}") from error
    if first != second:
        raise ContractBroken(f"a {name} does not survive a round trip")
    return True


def _read(message: Message) -> None:
    """Use all that a message offers."""
    parts: dict[str, object] = {}
    for cls in reversed(type(message).__mro__):
        parts.update(cls.__dict__)
    for part in parts.values():
        if isinstance(part, property) and part.fget is not None:
            part.fget(message)
    if isinstance(message, BatchTokenIDOutput | BatchStrOutput):
        message.rows()
    if isinstance(message, BaseBatchReq):
        layout = BatchLayout(type(message))
        layout.join([message, layout.pick(message, range(len(message)))])


class _Link:
    """One direction of a link: its codec, and a frame of each sample that travels there."""

    def __init__(self, classes: tuple[type[Message], ...]) -> None:
        self.codec = Codec(sends=classes, receives=classes)
        self.frames = [self.codec.encode(message) for message in SAMPLES.values() if type(message) in classes]


# --- tampering ---------------------------------------------------------------------------------------------

_HEADERS: Final = (
    b"\x00",  # 0
    b"\x7f",  # 127
    b"\xff",  # -1
    b"\xc0",  # nil
    b"\xc1",  # never used
    b"\xc2",  # false
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",  # the largest integer
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",  # the smallest
    b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
    b"\xdb\xff\xff\xff\xff",  # 4 GiB of text
    b"\xdd\xff\xff\xff\xff",  # an array of 4 Gi elements
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xc9\xff\xff\xff\xff\x05",  # 4 GiB of an extension type
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xa1\x80",  # text that is not UTF-8
    b"\x91" * 600,  # arrays in arrays
    b"\x81\xa1x" * 600,  # maps in maps
)


def tamper(frame: bytes, random: Random, *, others: Sequence[bytes] = ()) -> bytes:
    """Return a frame with up to four things wrong with it (or, by chance, still right).

    Args:
        frame: what to start from.
        random: decides what, and where.
        others: frames that pieces may come from.
    """
    for _ in range(random.choice((1, 1, 2, 4))):
        frame = random.choice(_TAMPERINGS)(frame, random, others or (frame,))
    return frame


_Tampering = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _flip(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    if not frame:
        return frame
    at = random.randrange(len(frame))
    return frame[:at] + bytes([frame[at] ^ 1 << random.randrange(8)]) + frame[at + 1 :]


def _overwrite(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(frame))
    header = random.choice(_HEADERS)
    return frame[:at] + header + frame[at + random.randint(0, 1) * len(header) :]


def _replace_one(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(frame))
    return frame[:at] + random.choice(_HEADERS) + frame[at + 1 :]


def _cut(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(frame, random)
    return frame[:start] + frame[stop:]


def _repeat(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(frame, random)
    return frame[:stop] + frame[start:]


def _truncate(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return frame[: random.randint(0, len(frame))]


def _splice(frame: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return frame[: random.randint(0, len(frame))] + other[random.randint(0, len(other)) :]


def _noise(frame: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(frame))
    return frame[:at] + random.randbytes(random.randint(1, 8)) + frame[at:]


_TAMPERINGS: Final[tuple[_Tampering, ...]] = (
    _flip,
    _overwrite,
    _replace_one,
    _cut,
    _repeat,
    _truncate,
    _splice,
    _noise,
)


def _span(frame: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(frame))
    return start, random.randint(start, min(len(frame), start + 8))
