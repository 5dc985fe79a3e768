"""Small sources, and compilers that do what a test needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.kernels.native import Native

from vidette.kernels import load_library
from vidette.kernels.build import COMPILERS, NoCompiler, compile_kernels
from vidette.kernels.library import ABI
from vidette.kernels.target import TARGETS, Target, missing_features

SECONDS = 30.0
"""How long anything of these tests may take on a machine that does other things as well."""

SMALL = """
extern "C" __attribute__((visibility("default"))) int vidette_kernels_abi(void) { return ABI; }
extern "C" __attribute__((visibility("default"))) const char *vidette_kernels_isa(void) { return "small"; }
"""


@pytest.fixture(scope="session")
def real_compiler() -> Path:
    """A C++ compiler; tests are skipped without one."""
    for name in COMPILERS:
        if found := shutil.which(name):
            return Path(found)
    pytest.skip("there is no C++ compiler")


@pytest.fixture(scope="session")
def small_library(real_compiler: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that can be loaded, and does nothing."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.cpp").write_text(SMALL.replace("ABI", str(ABI)))
    command = [str(real_compiler), "-shared", "-fPIC", "small.cpp", "-o", "small.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "small.so"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of sources."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "kernels.cpp").write_text('#include "small.hpp"\n')
    (folder / "small.hpp").write_text(SMALL.replace("ABI", str(ABI)))
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where libraries are kept; it is not there yet."""
    return tmp_path / "home" / "kernels"


class FakeCompiler:
    """A program that says a version, and for the rest runs a few lines of shell.

    `$built` is where the library belongs. Each time it compiles, `calls` gets a line with its arguments.
    """

    def __init__(self, folder: Path, name: str, script: str, version: str) -> None:
        self.calls = folder / f"{name}.calls"
        self.calls.touch()
        self.path = folder / name
        self.path.write_text(
            f'#!/bin/sh\ncase "$*" in *--version) {version}; exit;; esac\n'
            f'echo "$*" >> {self.calls}\nfor built; do :; done\n{script}\n'
        )
        self.path.chmod(0o755)

    def times(self) -> int:
        """How often it has compiled."""
        return len(self.calls.read_text().splitlines())


Fake = Callable[..., FakeCompiler]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Make a compiler: `fake(SCRIPT, name=..., version=...)`."""

    def make(script: str, *, name: str = "fake++", version: str = "echo fake++ 1.0") -> FakeCompiler:
        return FakeCompiler(tmp_path, name, script, version)

    return make


@pytest.fixture
def copying(fake: Fake, small_library: Path) -> FakeCompiler:
    """A compiler that makes the small library of whatever it gets."""
    return fake(f'cp {small_library} "$built"')


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a file, or all of them, belong to somebody else."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4242, -1)
        else:
            uid = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: uid + 1)

    return give


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process does."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition under a deadline."""
    return wait_until


@pytest.fixture(scope="session", params=TARGETS)
def kernels(request: pytest.FixtureRequest) -> Native:
    """The native kernels, of each target that this machine can run."""
    target: Target = request.param
    if missing := missing_features(target):
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    try:
        return Native(load_library(compile_kernels(target=target)))
    except NoCompiler as exc:
        pytest.skip(str(exc))
