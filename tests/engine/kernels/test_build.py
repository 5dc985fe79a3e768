"""Compiling once, by whoever is first; a whole library or none, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vidette.errors import KernelError
from vidette.kernels import build, cache, compile_kernels, find_kernels
from vidette.kernels.build import FLAGS, SOURCE, NoCompiler, find_compiler
from vidette.kernels.library import load_kernels
from vidette.kernels.target import TARGET_FLAGS, TARGETS, Target, missing_features

SECONDS = 20.0
"""How long a compiler may take that only waits for a test."""


def test_our_sources_are_right(real_compiler: Path) -> None:
    """What can be told without making code of them, which takes several times as long."""
    flags = [*FLAGS, *TARGET_FLAGS["native"], "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run([str(real_compiler), *flags, str(SOURCE / "kernels.cpp")], check=False)
    assert done.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_they_compile_for_each_target_without_a_warning(
    real_compiler: Path, directory: Path, target: Target
) -> None:
    path = compile_kernels(target=target, compiler=real_compiler, directory=directory, strict=True)
    if not missing_features(target):
        assert target in ("native", load_kernels(path).isa)


def test_a_real_compiler_fails(real_compiler: Path, directory: Path, source: Path) -> None:
    (source / "small.hpp").write_text("int abi() { return nothing; }\n")
    with pytest.raises(
        KernelError, match=r"failed with status 1:\n(.|\n)*'?nothing'? was not declared|undeclared"
    ):
        compile_kernels(compiler=real_compiler, directory=directory, source=source)
    assert left(directory) == set()


def test_warnings_are_errors_if_asked(real_compiler: Path, directory: Path, source: Path) -> None:
    with (source / "small.hpp").open("a") as file:
        file.write("static int unused;\n")
    compile_kernels(compiler=real_compiler, directory=directory, source=source)
    with pytest.raises(KernelError, match="Werror"):
        compile_kernels(compiler=real_compiler, directory=directory, source=source, strict=True)


# --- once ---------------------------------------------------------------------------


def left(directory: Path) -> set[str]:
    """What is in the directory, but for the lock."""
    return {path.name for path in directory.iterdir()} - {"lock"}


def test_it_is_compiled_once(copying: Any, directory: Path, source: Path) -> None:
    said: list[str] = []

    def compiled(**options: Any) -> Path:
        return compile_kernels(
            compiler=copying.path,
            directory=directory,
            source=source,
            starting=lambda: said.append("starting"),
            **options,
        )

    path = compiled()
    assert cache.is_whole(path)
    assert left(directory) == {path.name, f"{path.name}.sha256"}
    assert compiled() == path
    assert copying.times() == len(said) == 1
    assert compiled(force=True) == path
    assert copying.times() == len(said) == 2


def test_the_command_line(copying: Any, directory: Path, source: Path) -> None:
    for target in TARGETS:
        compile_kernels(target=target, compiler=copying.path, directory=directory, source=source)
    native, avx2, portable = (call.split() for call in copying.calls.read_text().splitlines())
    assert "-march=native" in native
    assert "-march=x86-64-v3" in avx2
    assert not any(option.startswith("-march") for option in portable)
    for call in native, avx2, portable:
        assert {"-std=c++20", "-shared", "-ffp-contract=off"} <= set(call)
        assert call[-3] == str(source / "kernels.cpp")
        assert not any("Werror" in option for option in call)


@pytest.mark.parametrize("changed", ["source", "new file", "flags", "processor", "compiler", "target"])
def test_whatever_goes_into_it_is_in_its_key(
    copying: Any, fake: Any, directory: Path, source: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    options: dict[str, Any] = {"compiler": copying.path, "directory": directory, "source": source}
    first = compile_kernels(**options)
    match changed:
        case "source":
            with (source / "small.hpp").open("a") as file:
                file.write("\n")
        case "new file":
            (source / "more.hpp").touch()
        case "flags":
            monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
        case "processor":
            monkeypatch.setattr(build, "machine_identity", lambda _: "another")
        case "compiler":
            script = copying.path.read_text()
            copying.path.write_text(script.replace("fake++ 1.0", "fake++ 1.1"))
        case "target":
            options["target"] = "portable"
    second = compile_kernels(**options)
    assert second != first
    assert copying.times() == 2
    assert cache.is_whole(first)
    assert cache.is_whole(second)


def test_what_is_no_source_is_not_in_it(copying: Any, directory: Path, source: Path) -> None:
    first = compile_kernels(compiler=copying.path, directory=directory, source=source)
    (source / "kernels.cpp~").touch()
    assert compile_kernels(compiler=copying.path, directory=directory, source=source) == first


def test_a_damaged_library_is_compiled_again(copying: Any, directory: Path, source: Path) -> None:
    path = compile_kernels(compiler=copying.path, directory=directory, source=source)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert compile_kernels(compiler=copying.path, directory=directory, source=source) == path
    assert path.read_bytes() == whole
    assert copying.times() == 2


def test_old_libraries_go(copying: Any, directory: Path, source: Path) -> None:
    for number in range(cache.KEPT + 2):
        (source / "small.hpp").write_text(f"// {number}\n")
        compile_kernels(compiler=copying.path, directory=directory, source=source)
    libraries = list(directory.glob("*.so"))
    assert len(libraries) == cache.KEPT
    assert compile_kernels(compiler=copying.path, directory=directory, source=source) in libraries
    assert copying.times() == cache.KEPT + 2


def test_two_at_once_compile_once(
    fake: Any,
    small_library: Path,
    directory: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads stand for processes: each opens the lock by itself."""
    go = tmp_path / "go"
    slow = fake(f'while [ ! -e {go} ]; do sleep 0.01; done; cp {small_library} "$built"')

    class Time:
        """What the one that waits for the lock sleeps by: then the compiler may go on."""

        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def sleep(_: float) -> None:
            go.touch()

    monkeypatch.setattr(cache, "time", Time)
    with ThreadPoolExecutor(2) as threads:
        results = [
            threads.submit(
                compile_kernels, compiler=slow.path, directory=directory, source=source, timeout=SECONDS
            )
            for _ in range(2)
        ]
        first, second = (result.result(timeout=2 * SECONDS) for result in results)
    assert first == second
    assert cache.is_whole(first)
    assert slow.times() == 1


# --- failures -------------------------------------------------------------------------


def test_the_compilers_last_words_are_told(fake: Any, directory: Path, source: Path) -> None:
    bad = fake("i=0; while [ $i -lt 99 ]; do i=$((i+1)); echo line $i. >&2; done; exit 4")
    with pytest.raises(KernelError) as caught:
        compile_kernels(compiler=bad.path, directory=directory, source=source)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{bad.path} failed with status 4:"
    assert lines == [f"line {number}." for number in range(80, 100)]
    assert left(directory) == set()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", "ended well, but made no library: it said nothing"),
        ('touch "$built"', "ended well, but made no library"),
        ('mkdir "$built"', "ended well, but made no library"),
        ('echo x > "$built"; exit 1', "failed with status 1:\nit said nothing"),
        ('echo x > "$built"; kill -9 $$', "failed with status -9"),
        (r'printf "\377 is wrong"; exit 1', "\N{REPLACEMENT CHARACTER} is wrong"),
    ],
)
def test_half_a_library_is_none(fake: Any, directory: Path, source: Path, script: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        compile_kernels(compiler=fake(script).path, directory=directory, source=source)
    assert said in str(caught.value)
    assert left(directory) == set()


def test_a_failure_keeps_what_was_there(fake: Any, copying: Any, directory: Path, source: Path) -> None:
    path = compile_kernels(compiler=copying.path, directory=directory, source=source)
    copying.path.write_text(copying.path.read_text().replace("cp ", "exit 1 "))
    with pytest.raises(KernelError):
        compile_kernels(compiler=copying.path, directory=directory, source=source, force=True)
    assert cache.is_whole(path)


def test_a_compiler_that_hangs_is_killed(fake: Any, directory: Path, source: Path) -> None:
    slow = fake("sleep 1000")
    with pytest.raises(KernelError, match=r"fake\+\+ did not end within 0.1 s, and was killed"):
        compile_kernels(compiler=slow.path, directory=directory, source=source, timeout=0.1)
    assert left(directory) == set()


def test_ctrl_c_kills_the_compiler_and_what_it_started(
    fake: Any, directory: Path, source: Path, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    pids = tmp_path / "pids"
    slow = fake(f'sleep 1000 & echo $$ $! > {pids}.tmp; mv {pids}.tmp {pids}; echo x > "$built"; wait')

    def interrupt() -> None:
        until(pids.exists)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt, daemon=True)
    with interrupts():
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            compile_kernels(compiler=slow.path, directory=directory, source=source)
    interrupter.join()
    until(lambda: not any(lives(pid) for pid in pids.read_text().split()))
    assert left(directory) == set()


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT is Python's own, whatever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def lives(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_build_left_is_removed(copying: Any, directory: Path, source: Path) -> None:
    cache.make_directory(directory)
    (directory / f"{cache.TEMPORARY}left").mkdir()
    path = compile_kernels(compiler=copying.path, directory=directory, source=source)
    assert left(directory) == {path.name, f"{path.name}.sha256"}


def test_the_compilers_own_files_lie_in_the_folder_that_goes(
    fake: Any, directory: Path, source: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with pytest.raises(KernelError):
        compile_kernels(
            compiler=fake(f"echo $TMPDIR $PWD $LC_ALL > {said}; exit 1").path,
            directory=directory,
            source=source,
        )
    temporary, folder, locale = said.read_text().split()
    assert Path(temporary).parent == Path(folder).parent == directory
    assert locale == "C"


def test_a_directory_that_cannot_be_made(copying: Any, tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelError, match="cannot keep native kernels in"):
        compile_kernels(compiler=copying.path, directory=tmp_path / "file" / "kernels", source=source)


def test_sources_that_are_gone(copying: Any, directory: Path, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot read the sources"):
        compile_kernels(compiler=copying.path, directory=directory, source=tmp_path / "gone")


# --- the compiler ---------------------------------------------------------------------


def test_which_compiler_is_taken(fake: Any, tmp_path: Path) -> None:
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    clang, gcc, cxx, chosen = (
        fake("", name=name, version=f"echo {name}") for name in ("clang++", "g++", "c++", "my++")
    )
    assert find_compiler({**path, "CXX": f"{chosen.path} -m64"}).command == (str(chosen.path), "-m64")
    assert find_compiler({**path, "CXX": "my++"}).version == "my++"
    assert find_compiler({**path, "CXX": " "}).command == (str(cxx.path),)
    path = {"PATH": str(tmp_path)}
    for found, then in ((cxx, gcc), (gcc, clang)):
        found.path.unlink()
        assert find_compiler(path).command == (str(then.path),)
    clang.path.unlink()
    with pytest.raises(NoCompiler, match=r"none of c\+\+, g\+\+, clang\+\+ is on the PATH"):
        find_compiler(path)


@pytest.mark.parametrize(
    ("cxx", "said"),
    [
        ("nope++ -x", "there is no such program"),
        ("'", "no command"),
        ("false", "ended with 1: "),
    ],
)
def test_a_choice_that_is_none(cxx: str, said: str) -> None:
    with pytest.raises(NoCompiler, match=said):
        find_compiler({"CXX": cxx, "PATH": os.environ["PATH"]})


def test_what_cannot_be_run(tmp_path: Path, directory: Path, source: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program\n")
    with pytest.raises(NoCompiler, match="cannot run"):
        compile_kernels(compiler=text, directory=directory, source=source)


def test_a_compiler_that_does_not_answer(
    fake: Any, directory: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_VERSION_SECONDS", 0.1)
    silent = fake("", version="sleep 1000 & wait")
    with pytest.raises(NoCompiler, match=r"did not end within 0.1 s"):
        compile_kernels(compiler=silent.path, directory=directory, source=source)


# --- without one ----------------------------------------------------------------------


def test_what_was_compiled_is_found_without_a_compiler(
    copying: Any, fake: Any, small_library: Path, directory: Path, source: Path
) -> None:
    assert find_kernels(directory=directory, source=source) is None
    other = fake(f'cp {small_library} "$built"', name="other++", version="echo other")
    first, second = (
        compile_kernels(compiler=compiler.path, directory=directory, source=source)
        for compiler in (copying, other)
    )
    os.utime(second, (1, 1))
    assert find_kernels(directory=directory, source=source) == first
    first.write_bytes(b"damaged")
    assert find_kernels(directory=directory, source=source) == second
    assert find_kernels(target="portable", directory=directory, source=source) is None
    (source / "small.hpp").write_text("// newer\n")
    assert find_kernels(directory=directory, source=source) is None
