"""`vidette wire`: read what passed the links of an engine, as `--capture` recorded it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from vidette.cli._parser import explain
from vidette.cli._run import say
from vidette.errors import UsageError
from vidette.transport.capture import SUFFIX, read_capture
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.bundle import Part, is_bundle, split_bundle
from vidette_protocol.messages import Message
from vidette_protocol.messages.catalogue import CATALOGUE
from vidette_protocol.plain import msgspec_to_builtins
from vidette_protocol.trace import Trace

_PLAIN = (bool, int, float, str, list, dict, memoryview, Struct)

SHORT = 160
"""Most characters of a field in a line for people."""


class Unreadable(DecodeError):  # noqa: N818  what it is, not what went wrong
    """A frame that is right, and whose contents are not in the file."""


class Passed(NamedTuple):
    """One frame on its way.

    Args:
        ns: when it had come.
        way: from whom to whom.
        frame: its body.
        message: what it holds, or why it holds nothing.
    """

    ns: int
    way: str
    frame: bytes
    message: Message | DecodeError


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette wire`."""
    kinds = parser.add_subparsers(title="what to do", required=True, metavar="KIND", dest="kind")
    dump = kinds.add_parser("dump", help="print what passed, a line for each message")
    decode = kinds.add_parser("decode", help="print one frame")
    replay = kinds.add_parser("replay", help="print what passed, and say where a request went wrong")
    for kind in (dump, replay):
        kind.add_argument("path", type=Path, metavar="PATH", help="a file, or a folder of one engine's files")
    decode.add_argument("frame", metavar="HEX|-", help="the frame, hexadecimal; - reads its bytes from stdin")
    for kind in (dump, decode, replay):
        kind.add_argument("--json", action="store_true", help="print JSON, an object on each line")
    explain(parser, "vidette serve --capture captures", "vidette wire dump captures")


def wire(options: argparse.Namespace) -> int:
    """Run; return 1 if something that passed is wrong."""
    return {"dump": _dump, "decode": _decode, "replay": _replay}[options.kind](options)


def _dump(options: argparse.Namespace) -> int:
    broken = 0
    for line, passed in _lines(options):
        print(line)
        broken += isinstance(passed.message, DecodeError) and not isinstance(passed.message, Unreadable)
    return 1 if broken else 0


def _decode(options: argparse.Namespace) -> int:
    if options.frame == "-":
        frame = sys.stdin.buffer.read()
    else:
        try:
            frame = bytes.fromhex(options.frame)
        except ValueError as error:
            raise UsageError(f"{options.frame[:SHORT]!r} is not hexadecimal: {error}") from error
    message = _read(_codec(), frame)
    if isinstance(message, DecodeError):
        say(f"vidette: {message}")
        return 1
    fields = _fields(message)
    if options.json:
        print(_json({"class": type(message).__name__, "fields": fields}))
    else:
        print(type(message).__name__)
        for name, value in fields.items():
            print(f"  {name}: {_json(value)}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    trace, faults = Trace(), 0
    for line, passed in _lines(options):
        print(line)
        if isinstance(passed.message, Unreadable):
            continue
        fault = str(passed.message) if isinstance(passed.message, DecodeError) else trace.see(passed.message)
        if fault is not None:
            faults += 1
            say(f"{passed.way} at {passed.ns} ns: {fault}")
    counts = ", ".join(f"{count} {what}" for what, count in trace.counts.items())
    say(f"{counts}; {len(trace.open)} without an end, {faults} faults")
    return 1 if faults or trace.open else 0


def _lines(options: argparse.Namespace) -> Iterator[tuple[str, Passed]]:
    """Yield what passed, in order of time, and the line that says so."""
    passages = _read_all(options.path)
    first = passages[0].ns if passages else 0
    for passed in passages:
        name = type(passed.message).__name__
        fields: dict[str, Any] = (
            {"error": str(passed.message)}
            if isinstance(passed.message, DecodeError)
            else _fields(passed.message)
        )
        if options.json:
            line = _json(
                {
                    "ns": passed.ns,
                    "way": passed.way,
                    "class": name,
                    "bytes": len(passed.frame),
                    "fields": fields,
                }
            )
        else:
            usual = _usual(passed.message)
            shown = " ".join(f"{key}={_short(fields[key])}" for key in fields if key not in usual)
            seconds = (passed.ns - first) / 1e9
            line = f"{seconds:10.6f}  {passed.way:26}  {name}  {shown}"
        yield line, passed


def _read_all(path: Path) -> list[Passed]:
    paths = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not paths:
        raise UsageError(f"{path} has no *{SUFFIX} in it; `--capture` writes some")
    codec, passages = _codec(), []
    for file in paths:
        capture = read_capture(file)
        way = f"{capture.head.sender} > {capture.head.receiver}"
        if capture.torn:
            say(f"{file}: the last {capture.torn} bytes are no whole record")
        passages += [Passed(ns, way, frame, _read(codec, frame)) for ns, frame in capture.records]
    return sorted(passages, key=lambda passed: passed.ns)


def _codec() -> Codec:
    return Codec(sends=CATALOGUE, receives=CATALOGUE, bulk=True)


def _read(codec: Codec, frame: bytes) -> Message | DecodeError:
    if is_bundle(frame) and any(part.raw is None for part in _parts(frame)):
        return Unreadable("a buffer in shared memory, which is not recorded")
    try:
        return codec.decode(bytearray(frame))
    except DecodeError as error:
        return error


def _parts(frame: bytes) -> list[Part]:
    try:
        return split_bundle(frame)[1]
    except DecodeError:  # decoding says so
        return []


def _usual(message: Message | DecodeError) -> set[str]:
    """Return the names of fields that have their defaults, which need no saying."""
    if isinstance(message, DecodeError):
        return set()
    values = msgspec.structs.asdict(message)
    return {
        field.name
        for field in msgspec.structs.fields(message)
        # By identity first: an array has no plain equality.
        if values[field.name] is field.default
        or (isinstance(values[field.name], _PLAIN) and values[field.name] in (field.default, [], {}))
    }


def _fields(message: Message) -> dict[str, Any]:
    try:
        fields = msgspec_to_builtins(message)
    except (ValueError, TypeError) as error:
        return {"not shown": str(error)}
    assert isinstance(fields, dict)
    return fields


def _short(value: object) -> str:
    text = _json(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
