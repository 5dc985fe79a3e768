"""What a Recorder writes is what was received, and reading it takes whatever a killed process left."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.errors import UsageError
from vidette.transport.capture import (
    LENGTH,
    MAGIC,
    SUFFIX,
    CaptureHead,
    Recorder,
    read_capture,
    recording,
)

HEAD = CaptureHead(sender="front", receiver="scheduler")
NAME = f"front-to-scheduler{SUFFIX}"


def record(folder: Path, frames: list[bytes]) -> Path:
    recorder = Recorder(folder, HEAD)
    for frame in frames:
        recorder.record(frame)
    recorder.close()
    return folder / NAME


@given(frames=st.lists(st.binary(max_size=300), max_size=5))
def test_frames_are_read_as_they_were_received(
    tmp_path_factory: pytest.TempPathFactory, frames: list[bytes]
) -> None:
    """Reading is the inverse of recording; times do not run backwards."""
    capture = read_capture(record(tmp_path_factory.mktemp("capture"), frames))
    assert capture.head == HEAD
    assert [got.frame for got in capture.records] == frames
    assert capture.torn == 0
    times = [got.ns for got in capture.records]
    assert times == sorted(times)


@given(cut=st.integers(0, 200))
def test_a_torn_file_is_read_up_to_where_it_is_torn(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """Of a file that ends anywhere, every whole record is read, and the rest is counted."""
    path = record(tmp_path_factory.mktemp("capture"), [b"first", b"second"])
    data = path.read_bytes()
    head = len(MAGIC) + LENGTH.size + LENGTH.unpack_from(data, len(MAGIC))[0]
    end = min(head + cut, len(data))
    path.write_bytes(data[:end])
    capture = read_capture(path)
    first = LENGTH.size + 8 + len(b"first")
    second = first + LENGTH.size + 8 + len(b"second")
    whole = 2 if end - head >= second else 1 if end - head >= first else 0
    assert [got.frame for got in capture.records] == [b"first", b"second"][:whole]
    assert capture.torn == end - head - (0, first, second)[whole]


def test_frames_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEAD)
    recorder.record(bytearray(b"so far"))
    assert [got.frame for got in read_capture(tmp_path / NAME).records] == [b"so far"]
    recorder.close()
    recorder.close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(record(tmp_path, []).stat().st_mode) == 0o600


def test_nothing_is_recorded_unless_asked() -> None:
    with recording(None, sender="front", receiver="scheduler") as recorder:
        assert recorder is None


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    with recording(str(tmp_path), sender="front", receiver="scheduler") as recorder:
        assert recorder is not None
        with pytest.raises(UsageError, match=r"cannot be made: File exists") as raised:
            Recorder(tmp_path, HEAD)
    assert raised.value.param == "capture"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no capture of a link"),
        (b"PNG", "no capture of a link"),
        (MAGIC, "does not say which link it is of"),
        (MAGIC + LENGTH.pack(2) + b"[]", "does not say which link it is of"),
        (
            MAGIC + LENGTH.pack(34) + b'{"sender":"front","receiver":"me"}' + LENGTH.pack(3) + b"abc",
            "a record of 3 bytes, too short for a time",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(data)
    with pytest.raises(UsageError, match=why):
        read_capture(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_capture(tmp_path / NAME)
