from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from vidette.transport.shm_pointer import (
    DIRECTORY,
    PREFIX,
    SegmentStatistics,
    SharedSegments,
    discard,
    materialise,
    read,
    sweep,
)
from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import ExtHooks, ShmPointer

if not DIRECTORY.is_dir():
    pytest.skip(f"there is no {DIRECTORY}", allow_module_level=True)

HOOKS = ExtHooks()
encode = msgspec.msgpack.Encoder(enc_hook=HOOKS.enc_hook).encode
decode: Any = msgspec.msgpack.Decoder(ext_hook=HOOKS.ext_hook).decode


def left_behind() -> set[str]:
    return {path.name for path in DIRECTORY.glob(f"{PREFIX}{os.getpid()}-*")}


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def segments() -> Iterator[SharedSegments]:
    """A ledger after which nothing is left: no segment, no descriptor."""
    before = open_descriptors()
    with SharedSegments() as segments:
        yield segments
    assert segments.statistics() == SegmentStatistics(0, 0)
    assert left_behind() == set()
    assert open_descriptors() <= before


def sent(pointer: ShmPointer) -> ShmPointer:
    """Return a pointer as it comes out of another process."""
    back: ShmPointer = decode(encode(pointer))
    return back


# --- from one end to the other --------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.tensor(True),
        torch.zeros(0, 4),
        np.arange(6, dtype=">i2").reshape(2, 3)[:, ::-1],
    ],
    ids=["bfloat16", "scalar", "empty", "big-endian"],
)
def test_what_is_created_is_materialised(segments: SharedSegments, value: Any) -> None:
    pointer = sent(segments.create(value))
    assert left_behind() == {pointer.shm_name}
    acknowledged: list[str] = []

    copy = materialise(pointer, acknowledged.append)

    assert copy.tolist() == value.tolist()
    assert acknowledged == [pointer.shm_name]
    assert pointer.acknowledgement.taken
    copy.fill_(1)  # it is the reader's own

    assert left_behind() == {pointer.shm_name}, "the reader unlinks nothing"
    assert segments.acknowledge(pointer.shm_name)
    assert left_behind() == set()


def test_bytes_need_no_torch(segments: SharedSegments) -> None:
    pointer = segments.create(np.array([1, 2], "<u2"), precomputed_hash=9)
    assert pointer.precomputed_hash == 9
    raw = read(pointer, segments.acknowledge)
    assert np.frombuffer(raw, pointer.dtype).reshape(pointer.shape).tolist() == [1, 2]


def test_another_process_reads_it(segments: SharedSegments) -> None:
    script = """if True:
        import sys, msgspec
        from vidette.transport.shm_pointer import read
        from vidette_protocol.ext import ExtHooks
        decoder = msgspec.msgpack.Decoder(ext_hook=ExtHooks().ext_hook)
        print(read(decoder.decode(sys.stdin.buffer.read()), print).hex())
        assert not {"torch", "multiprocessing"} & sys.modules.keys()
    """
    pointer = segments.create(torch.tensor([1, 2], dtype=torch.int16))
    done = subprocess.run(
        [sys.executable, "-c", script], input=encode(pointer), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().split() == [pointer.shm_name, "01000200"]


def test_a_segment_is_for_its_user_alone(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(1))
    assert (DIRECTORY / pointer.shm_name).stat().st_mode & 0o777 == 0o600


# --- acknowledged exactly once --------------------------------------------------------------------


def test_a_pointer_is_materialised_once(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(1), readers=2)
    acknowledged: list[str] = []
    materialise(pointer, acknowledged.append)
    with pytest.raises(LocalProtocolError, match="acknowledged once"):
        materialise(pointer, acknowledged.append)
    discard(pointer, acknowledged.append)
    assert acknowledged == [pointer.shm_name]


def test_a_pointer_that_is_not_read_is_acknowledged_all_the_same(segments: SharedSegments) -> None:
    """Whoever aborts a request discards its pointers, however often."""
    pointer = sent(segments.create(torch.ones(1)))
    acknowledged: list[str] = []
    discard(pointer, acknowledged.append)
    discard(pointer, acknowledged.append)
    assert acknowledged == [pointer.shm_name]


def test_a_pointer_that_cannot_be_read_is_acknowledged_all_the_same(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(2))
    longer = ShmPointer(pointer.shm_name, (3,), "float32")
    acknowledged: list[str] = []
    with pytest.raises(RemoteProtocolError, match="8 bytes, not 12"):
        materialise(longer, acknowledged.append)
    assert acknowledged == [pointer.shm_name]


def test_each_reader_acknowledges(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(2), readers=3)
    for left in (1, 1, 0):
        materialise(sent(pointer), segments.acknowledge)
        assert segments.statistics().segments == left
    assert not segments.acknowledge(pointer.shm_name), "one too many is no error: it may have been dropped"


# --- nothing leaks --------------------------------------------------------------------------------


def test_a_message_that_is_dropped_leaves_nothing(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(2), readers=2)
    assert segments.statistics() == SegmentStatistics(1, 8)
    assert segments.drop(pointer.shm_name)
    assert left_behind() == set()
    assert not segments.drop(pointer.shm_name)
    assert not segments.acknowledge(pointer.shm_name), "this one crossed the drop"


def test_a_message_that_is_never_decoded_leaves_nothing_once_the_link_closes() -> None:
    segments = SharedSegments()
    frames = [encode(segments.create(torch.ones(size))) for size in (1, 2, 3)]
    assert len(left_behind()) == 3
    with pytest.raises(DecodeError):
        decode(frames[0].replace(b"float32", b"float31"))
    segments.close()
    assert left_behind() == set()
    segments.close()


def test_who_reads_while_it_is_dropped_reads_on_or_hears_of_it(segments: SharedSegments) -> None:
    pointer = segments.create(torch.ones(2))
    segments.drop(pointer.shm_name)
    with pytest.raises(RemoteProtocolError, match="cannot be opened: No such file"):
        materialise(pointer, segments.acknowledge)


def test_a_ledger_has_a_bound() -> None:
    with SharedSegments(max_bytes=8) as segments:
        pointer = segments.create(torch.ones(2))
        with pytest.raises(LocalProtocolError, match="1 bytes more than the 8"):
            segments.create(torch.tensor(True))
        segments.drop(pointer.shm_name)
        segments.create(torch.ones(2))


def test_somebody_has_to_read_it(segments: SharedSegments) -> None:
    with pytest.raises(LocalProtocolError, match="0 readers"):
        segments.create(torch.ones(1), readers=0)


@pytest.mark.parametrize("value", [[1, 2], torch.ones(2).to_sparse(), np.array([None])])
def test_what_does_not_travel_is_not_shared(segments: SharedSegments, value: object) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        segments.create(value)


@pytest.mark.parametrize("call", ["write", "link"])
def test_a_system_without_room_leaves_nothing_half_made(
    segments: SharedSegments, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            segments.create(torch.ones(2))


# --- what a name may lead to ----------------------------------------------------------------------


def fake(name: str) -> ShmPointer:
    return ShmPointer(f"{PREFIX}{os.getpid()}-{name}", (2,), "uint8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of the same kind as the one of shared memory, of this test alone."""
    return tmp_path


def test_a_link_is_not_followed(place: Path) -> None:
    pointer = fake("link")
    (place / "elsewhere").write_bytes(b"\1\2")
    (place / pointer.shm_name).symlink_to(place / "elsewhere")
    with pytest.raises(RemoteProtocolError, match="cannot be opened"):
        read(pointer, list[str]().append, directory=place)


def test_a_pipe_is_no_segment_and_nobody_waits_at_it(place: Path) -> None:
    pointer = fake("pipe")
    os.mkfifo(place / pointer.shm_name)
    with pytest.raises(RemoteProtocolError, match="no segment of this user's"):
        read(pointer, list[str]().append, directory=place)


def test_a_folder_is_no_segment(place: Path) -> None:
    pointer = fake("folder")
    (place / pointer.shm_name).mkdir()
    with pytest.raises(RemoteProtocolError, match="no segment of this user's"):
        read(pointer, list[str]().append, directory=place)


def test_another_users_segment_is_not_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = fake("foreign")
    (place / pointer.shm_name).write_bytes(b"\1\2")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RemoteProtocolError, match="no segment of this user's"):
        read(pointer, list[str]().append, directory=place)


def test_a_size_is_believed_only_when_the_memory_is_there(place: Path) -> None:
    """A file may claim any length; before any of it is read, its pages are counted."""
    pointer = ShmPointer("vidette-hollow", (1 << 29,), "uint8")
    with (place / pointer.shm_name).open("wb") as file:
        file.truncate(1 << 29)
    with pytest.raises(RemoteProtocolError, match="has 536870912 bytes"):
        read(pointer, list[str]().append, directory=place)
    with pytest.raises(RemoteProtocolError, match="1073741824 are allowed"):
        read(ShmPointer("vidette-huge", (1 << 40,), "uint8"), list[str]().append, directory=place)


def test_a_segment_that_is_shortened_meanwhile_is_an_error_and_no_signal(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = fake("short")
    (place / pointer.shm_name).write_bytes(b"\1\2")
    preadv = os.preadv

    def shorten(fd: int, buffers: list[memoryview], at: int) -> int:
        os.truncate(place / pointer.shm_name, 1)
        return preadv(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", shorten)
    before = open_descriptors()
    with pytest.raises(RemoteProtocolError, match="shortened to 1 bytes"):
        read(pointer, list[str]().append, directory=place)
    assert open_descriptors() == before


# --- owners that were killed ----------------------------------------------------------------------

OWNER = """if True:
    import sys, time, numpy
    from pathlib import Path
    from vidette.transport.shm_pointer import SharedSegments
    pointer = SharedSegments(directory=Path(sys.argv[1])).create(numpy.ones(2))
    print(pointer.shm_name, flush=True)
    time.sleep(60)
"""


def test_a_sweep_finds_the_segments_of_the_dead_and_of_nobody_else(tmp_path: Path) -> None:
    own = DIRECTORY / f"vidette-test-{os.getpid()}"
    own.mkdir()
    try:
        with (
            SharedSegments(directory=own) as segments,
            subprocess.Popen(
                [sys.executable, "-c", OWNER, str(own)], stdout=subprocess.PIPE, text=True
            ) as owner,
        ):
            assert owner.stdout is not None
            orphan = owner.stdout.readline().strip()
            ours = segments.create(torch.ones(2)).shm_name
            (own / f"{PREFIX}dangling").symlink_to(own / "nowhere")
            (own / "of somebody else").touch()
            assert sweep(own) == 0, "both owners live"
            owner.kill()
            owner.wait()
            assert sweep(own) == 1
            assert not (own / orphan).exists()
            assert (own / ours).exists()
            assert sweep(own) == 0
    finally:
        for path in own.iterdir():
            path.unlink()
        own.rmdir()
