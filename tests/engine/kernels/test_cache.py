"""Where libraries are, what is whole, and what may not be loaded."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from vidette.errors import KernelError
from vidette.kernels.cache import (
    KEPT,
    check_trust,
    is_whole,
    kernels_directory,
    locked,
    make_directory,
    mark_used,
    put,
    remove_leftovers,
    remove_old,
)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VIDETTE_HOME": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/kernels")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/vidette/kernels")),
        ({"VIDETTE_HOME": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache/vidette/kernels"),
    ],
)
def test_the_directory(environ: Mapping[str, str], expected: Path) -> None:
    assert kernels_directory(environ) == expected


def keep(directory: Path, name: str, content: bytes = b"library") -> Path:
    make_directory(directory)
    built = directory / "built"
    built.write_bytes(content)
    put(built, directory / name)
    return directory / name


def test_what_was_put_is_whole(directory: Path) -> None:
    library = keep(directory, "a.so")
    assert is_whole(library)
    assert library.read_bytes() == b"library"
    assert {path.name for path in directory.iterdir()} == {"a.so", "a.so.sha256"}
    assert (directory / "a.so.sha256").read_text().endswith("  a.so\n")
    assert is_whole(keep(directory, "a.so", b"another"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda library: library.write_bytes(b"librar"),
        lambda library: library.write_bytes(b"Library"),
        lambda library: library.unlink(),
        lambda library: library.with_name("a.so.sha256").unlink(),
        lambda library: library.with_name("a.so.sha256").write_text(""),
        lambda library: library.with_name("a.so.sha256").write_bytes(b"\xff\n"),
        lambda library: library.rename(library.with_name("b.so")) and library.touch(),
    ],
)
def test_what_is_damaged_is_not(directory: Path, damage: Callable[[Path], object]) -> None:
    library = keep(directory, "a.so")
    damage(library)
    assert not is_whole(library)


def test_nobody_else_may_write_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0)
    try:
        library = keep(directory, "a.so")
        with locked(directory):
            pass
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(not path.stat().st_mode & 0o022 for path in directory.iterdir())
    check_trust(library)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_write_to_is_not_used(directory: Path, mode: int) -> None:
    library = keep(directory, "a.so")
    directory.chmod(mode)
    with pytest.raises(KernelError, match=r"others may write to .*kernels, .*`chmod go-w"):
        make_directory(directory)
    with pytest.raises(KernelError, match="others may write"):
        check_trust(library)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_library_that_others_write_to_is_not_loaded(directory: Path, mode: int) -> None:
    library = keep(directory, "a.so")
    library.chmod(mode)
    with pytest.raises(KernelError, match=r"others may write to .*a\.so"):
        check_trust(library)


def test_a_directory_of_somebody_else_is_not_used(directory: Path, give_away: Callable[[Path], None]) -> None:
    library = keep(directory, "a.so")
    give_away(directory)
    with pytest.raises(KernelError, match="kernels belongs to user"):
        make_directory(directory)
    with pytest.raises(KernelError, match="kernels belongs to user"):
        check_trust(library)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_of_somebody_else_is_not_loaded(directory: Path) -> None:
    library = keep(directory, "a.so")
    os.chown(library, 4242, -1)
    with pytest.raises(KernelError, match=r"a\.so belongs to user 4242"):
        check_trust(library)


def test_a_link_is_not_loaded(directory: Path) -> None:
    library = keep(directory, "a.so")
    (directory / "b.so").symlink_to(library)
    with pytest.raises(KernelError, match="no regular file"):
        check_trust(directory / "b.so")


def test_who_waits_too_long_says_so(directory: Path) -> None:
    make_directory(directory)
    with locked(directory) as alone:
        assert alone
        with pytest.raises(KernelError, match="has been building kernels in"), locked(directory, seconds=0.0):
            pass
    with locked(directory, seconds=0.0) as alone:
        assert alone


def test_a_file_system_without_locks_will_do(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    make_directory(directory)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(directory) as alone:
        assert not alone


def test_the_latest_used_are_kept(directory: Path) -> None:
    libraries = [keep(directory, f"native-{number}.so") for number in range(KEPT + 2)]
    other = keep(directory, "avx2-0.so")
    for age, library in enumerate([*libraries, other]):
        os.utime(library, (age, age))
    mark_used(libraries[0])
    remove_old(directory, "native-")
    kept = {libraries[0], *libraries[3:], other}
    assert set(directory.glob("*.so")) == kept
    assert {path.name for path in directory.glob("*.sha256")} == {f"{path.name}.sha256" for path in kept}


def test_leftovers_go(directory: Path) -> None:
    library = keep(directory, "a.so")
    (directory / ".build-x").mkdir()
    (directory / ".build-x" / "kernels.so").touch()
    (directory / "b.so.sha256").touch()
    remove_leftovers(directory)
    assert {path.name for path in directory.iterdir()} == {"a.so", "a.so.sha256"}
    assert is_whole(library)
