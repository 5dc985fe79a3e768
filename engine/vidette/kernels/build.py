"""Compiles the native kernels for a machine, once: the library is kept under a key of all that went into it.

The key is made of the sources, the flags, the compiler's version and, for the very machine, its processor.
Where there is no compiler any more, a library that differs in the compiler alone will do.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette.errors import KernelError
from vidette.kernels.cache import (
    SUFFIX,
    TEMPORARY,
    is_whole,
    kernels_directory,
    locked,
    make_directory,
    mark_used,
    put,
    remove_leftovers,
    remove_old,
)
from vidette.kernels.target import TARGET_FLAGS, Target, machine_identity

SOURCE: Final = Path(__file__).parent / "source"
"""The folder of the sources; `kernels.cpp` includes all others."""
COMPILERS: Final = ("c++", "g++", "clang++")
"""Looked for in this order, after $CXX."""
FLAGS: Final = (
    *("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-ffp-contract=off"),
)
STRICT_FLAGS: Final[Mapping[Target, tuple[str, ...]]] = MappingProxyType(
    {
        # GCC 12 finds what is not initialised in its own intrinsics for AVX-512; Clang knows no `maybe`.
        "native": (
            *("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
            "-Wno-unknown-warning-option",
        ),
        "avx2": ("-Wall", "-Wextra", "-Werror"),
        "portable": ("-Wall", "-Wextra", "-Werror"),
    }
)
COMPILE_SECONDS: Final = 60.0
"""A compiler that takes longer is killed."""

_VERSION_SECONDS: Final = 20.0
_LAST_LINES: Final = 20
_LAST_BYTES: Final = 1 << 13
_MAIN: Final = "kernels.cpp"
_SUFFIXES: Final = frozenset({".cpp", ".hpp", ".h", ".inc"})
_KEY_CHARS: Final = 16


class NoCompiler(KernelError):  # noqa: N818  the state, as its siblings
    """There is no C++ compiler that answers."""


class Compiler(NamedTuple):
    """A C++ compiler that answers.

    Args:
        command: how to run it, without arguments of ours.
        version: what it says of itself.
    """

    command: tuple[str, ...]
    version: str


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Find the C++ compiler: $CXX, which may hold options, or else the first of COMPILERS.

    Args:
        environ: the environment to look in (default: the process's).

    Raises:
        NoCompiler: there is none, or it does not answer.
    """
    env = os.environ if environ is None else environ
    if chosen := env.get("CXX", "").strip():
        try:
            command = shlex.split(chosen)
        except ValueError as exc:
            raise NoCompiler(f"CXX is {chosen!r}, which is no command: {exc}") from exc
        found = shutil.which(command[0], path=env.get("PATH"))
        if found is None:
            raise NoCompiler(f"CXX is {chosen!r}, and there is no such program")
        return _ask_version([found, *command[1:]])
    for name in COMPILERS:
        if found := shutil.which(name, path=env.get("PATH")):
            return _ask_version([found])
    names = ", ".join(COMPILERS)
    raise NoCompiler(f"there is no C++ compiler: none of {names} is on the PATH, and CXX is unset")


def compile_kernels(
    *,
    target: Target = "native",
    compiler: Path | None = None,
    directory: Path | None = None,
    source: Path = SOURCE,
    force: bool = False,
    strict: bool = False,
    timeout: float = COMPILE_SECONDS,
    starting: Callable[[], None] | None = None,
) -> Path:
    """Compile the kernels, unless that was done before, and return the path of the library.

    Two processes that do it at once compile once. Whatever happens, the path that is returned only ever
    names a whole library, and the compiler ends before this returns or raises.

    Args:
        target: what to compile for.
        compiler: g++, clang++ or one that takes the same options (default: `find_compiler()`).
        directory: where libraries are kept (default: `kernels_directory()`); made if need be.
        source: the folder of the sources.
        force: compile even if it was done before.
        strict: warn, and take warnings for errors.
        timeout: seconds the compiler may take.
        starting: called right before it starts; not if nothing has to be compiled.

    Raises:
        NoCompiler: there is no compiler that answers.
        KernelError: it failed or took too long, or the directory cannot be used.
    """
    asked = find_compiler() if compiler is None else _ask_version([os.fspath(compiler)])
    directory = directory or kernels_directory()
    flags = _flags(target, strict=strict)
    stem = f"{_stem(target, flags, source)}-{_digest([*asked.command, asked.version])}"
    library = directory / f"{stem}{SUFFIX}"
    try:
        make_directory(directory)
        if not force and is_whole(library):
            mark_used(library)
            return library
        with locked(directory) as alone:
            if not force and is_whole(library):  # another one has built it while we waited
                return library
            if alone:
                remove_leftovers(directory)
            if starting is not None:
                starting()
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=directory) as temporary:
                command = [*asked.command, *flags, os.fspath(source.absolute() / _MAIN)]
                put(_compile(command, Path(temporary), timeout), library)
            remove_old(directory, f"{target}-")
    except OSError as exc:
        raise KernelError(f"cannot keep native kernels in {directory}: {exc}") from exc
    return library


def find_kernels(
    *, target: Target = "native", directory: Path | None = None, source: Path = SOURCE
) -> Path | None:
    """Return the library of these sources for this machine that was used last, whatever compiled it.

    Args:
        target: what it was compiled for.
        directory: where libraries are kept (default: `kernels_directory()`).
        source: the folder of the sources.

    Raises:
        KernelError: the sources or the processor cannot be read.
    """
    directory = directory or kernels_directory()
    stem = _stem(target, _flags(target, strict=False), source)
    ages = {}
    for path in directory.glob(f"{stem}-*{SUFFIX}"):
        if is_whole(path):
            ages[path] = path.stat().st_mtime_ns
    return max(ages, key=ages.__getitem__, default=None)


def _flags(target: Target, *, strict: bool) -> tuple[str, ...]:
    return (*FLAGS, *TARGET_FLAGS[target], *(STRICT_FLAGS[target] if strict else ()))


def _stem(target: Target, flags: Sequence[str], source: Path) -> str:
    """Return what the names of all libraries begin with that do the same on the same machines."""
    parts = [*flags, machine_identity(target)]
    try:
        for path in sorted(path for path in source.iterdir() if path.suffix in _SUFFIXES):
            parts += [path.name, path.read_text(encoding="utf-8")]
    except (OSError, UnicodeDecodeError) as exc:
        raise KernelError(f"cannot read the sources of the native kernels in {source}: {exc}") from exc
    return f"{target}-{_digest(parts)}"


def _digest(parts: Iterable[str]) -> str:
    """Return a key of texts, in this order and with these borders."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode(errors="surrogateescape")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()[:_KEY_CHARS]


def _ask_version(command: Sequence[str]) -> Compiler:
    try:
        status, said = _run([*command, "--version"], timeout=_VERSION_SECONDS)
    except KernelError as exc:
        raise NoCompiler(str(exc)) from exc
    if status or not said:
        raise NoCompiler(f"`{shlex.join(command)} --version` ended with {status}: {_last_lines(said)}")
    return Compiler(tuple(command), said)


def _compile(command: Sequence[str], temporary: Path, timeout: float) -> Path:
    """Run the compiler in a folder of its own, for what it writes beside the library as well."""
    built = temporary / f"kernels{SUFFIX}"
    status, said = _run([*command, "-o", os.fspath(built)], timeout=timeout, temporary=temporary)
    if status:
        raise KernelError(f"{command[0]} failed with status {status}:\n{_last_lines(said)}")
    if not built.is_file() or not built.stat().st_size:
        raise KernelError(f"{command[0]} ended well, but made no library: {_last_lines(said)}")
    return built


def _run(command: Sequence[str], *, timeout: float, temporary: Path | None = None) -> tuple[int, str]:
    """Run a program without a shell; return its exit status, and the end of what it said."""
    env = os.environ | {"LC_ALL": "C"} | ({} if temporary is None else {"TMPDIR": os.fspath(temporary)})
    with tempfile.TemporaryFile(dir=temporary) as output:
        try:
            # A group of its own, since a compiler starts others, which have to end with it.
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=temporary,
                process_group=0,
            )
        except OSError as exc:
            raise KernelError(f"cannot run {command[0]}: {exc}") from exc
        try:
            status = process.wait(timeout)
        except BaseException as exc:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(exc, subprocess.TimeoutExpired):
                raise KernelError(f"{command[0]} did not end within {timeout:g} s, and was killed") from exc
            raise
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - _LAST_BYTES))
        return status, output.read().decode(errors="replace").strip()


def _last_lines(said: str) -> str:
    return "\n".join(said.splitlines()[-_LAST_LINES:]) or "it said nothing"
