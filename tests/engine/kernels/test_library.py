"""Loading native kernels, or going on without."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidette.errors import KernelError, UsageError
from vidette.kernels import compile_kernels, library, load_library, open_kernels
from vidette.kernels.library import ABI, choose_target, load_kernels

ON: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path / "home"))


def test_kernels_are_opened(copying: Any, directory: Path) -> None:
    opened = open_kernels(compiler=copying.path, environ=ON)
    assert opened.kernels is not None
    assert opened.reason == ""
    assert opened.kernels.isa == "small"
    assert opened.kernels.path.parent == directory
    again = open_kernels(compiler=copying.path, environ=ON)
    assert again.kernels is not None
    assert again.kernels.path == opened.kernels.path
    assert copying.times() == 1


def test_they_are_off(copying: Any, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_kernels(compiler=copying.path, environ={"VIDETTE_KERNELS": "off"})
    assert opened == (None, "VIDETTE_KERNELS is off")
    assert not directory.exists()
    assert not caplog.records


def test_a_target_is_chosen(copying: Any) -> None:
    opened = open_kernels(compiler=copying.path, environ={"VIDETTE_KERNELS": "portable"})
    assert opened.kernels is not None
    assert opened.kernels.path.name.startswith("portable-")


def test_what_may_be_chosen() -> None:
    assert choose_target({}) == choose_target({"VIDETTE_KERNELS": ""}) == "native"
    assert choose_target({"VIDETTE_KERNELS": "avx2"}) == "avx2"
    with pytest.raises(
        UsageError, match="VIDETTE_KERNELS is 'no'; it must be one of off, native, avx2, portable"
    ):
        choose_target({"VIDETTE_KERNELS": "no"})


def test_without_a_compiler_the_log_says_once_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    opened = open_kernels(environ=ON)
    assert opened.kernels is None
    assert "there is no C++ compiler" in opened.reason
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "by torch alone" in record.getMessage()
    assert opened.reason in record.getMessage()


def test_without_a_compiler_what_was_compiled_ahead_is_taken(
    copying: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = compile_kernels(compiler=copying.path)
    monkeypatch.setenv("CXX", "nope++")
    opened = open_kernels(environ=ON)
    assert opened.kernels is not None
    assert opened.kernels.path == path
    assert not caplog.records


@pytest.mark.parametrize("script", ["echo wrong; exit 1", 'echo no library > "$built"'])
def test_whatever_goes_wrong_torch_goes_on(fake: Any, script: str, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_kernels(compiler=fake(script).path, environ=ON)
    assert opened.kernels is None
    assert "fake++ failed" in opened.reason or "cannot load" in opened.reason
    assert len(caplog.records) == 1


def test_a_processor_that_is_too_old(copying: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "missing_features", lambda _: ["avx2", "fma"])
    opened = open_kernels(compiler=copying.path, environ={"VIDETTE_KERNELS": "avx2"})
    assert opened.reason == "this processor cannot run kernels for avx2: it lacks avx2, fma"
    assert copying.times() == 0


def test_a_cache_of_somebody_else_is_not_loaded(copying: Any, give_away: Callable[[Path], None]) -> None:
    path = compile_kernels(compiler=copying.path)
    give_away(path.parent)
    assert "belongs to user" in open_kernels(compiler=copying.path, environ=ON).reason


def compiled(folder: Path, compiler: Path, code: str) -> Path:
    (folder / "it.cpp").write_text(code)
    command = [str(compiler), "-shared", "-fPIC", "it.cpp", "-o", "it.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "it.so"


def test_another_abi_is_refused(tmp_path: Path, real_compiler: Path, small_library: Path) -> None:
    code = small_library.with_name("small.cpp").read_text().replace(f"return {ABI};", f"return {ABI + 1};")
    path = compiled(tmp_path, real_compiler, code)
    with pytest.raises(KernelError, match=f"have ABI {ABI + 1}, and {ABI} is needed"):
        load_library(path)


def test_another_library_is_refused(tmp_path: Path, real_compiler: Path) -> None:
    path = compiled(tmp_path, real_compiler, "int other() { return 1; }")
    with pytest.raises(KernelError, match="holds no native kernels"):
        load_library(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot load the native kernels"):
        load_library(tmp_path / "gone.so")


def test_a_relative_path(small_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_library.parent)
    assert load_kernels(Path("small.so")).isa == "small"


def test_others_may_have_written_it(small_library: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.so"
    path.write_bytes(small_library.read_bytes())
    path.chmod(0o666)
    with pytest.raises(KernelError, match="others may write"):
        load_library(path)
