"""`vidette build-kernels`: what it prints, and what it does when the compiler fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vidette.cli import build_kernels, main
from vidette.kernels.build import COMPILERS
from vidette.kernels.library import ABI

SMALL = f"""
extern "C" __attribute__((visibility("default"))) int vidette_kernels_abi(void) {{ return {ABI}; }}
extern "C" __attribute__((visibility("default"))) const char *vidette_kernels_isa(void) {{ return "small"; }}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels go, compiled from small sources by a compiler that logs its calls."""
    real = next(filter(None, map(shutil.which, COMPILERS)), None)
    if real is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "kernels.cpp").write_text(SMALL)
    compiler = tmp_path / "small++"
    compiler.write_text(
        f'#!/bin/sh\nfor built; do :; done\nif [ "$built" != --version ]; then echo >> {tmp_path}/calls;'
        f' set -- -shared -fPIC {tmp_path}/kernels.cpp -o "$built"; fi\nexec {real} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path))
    return tmp_path


def test_it_says_where_and_for_what(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-kernels"]) == 0
    out, err = capsys.readouterr()
    (library,) = (home / "kernels").glob("native-*.so")
    assert out.startswith(f"{library}: for small, ")
    assert " KiB, compiled in " in out
    assert "compiling the native kernels for native" in err

    assert main(["build-kernels"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(" KiB, was there already\n")
    assert err == ""
    assert main(["build-kernels", "--force"]) == 0
    assert "compiled in" in capsys.readouterr().out
    assert (home / "calls").read_text().count("\n") == 2


def test_it_says_it_in_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-kernels", "--target", "portable", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    (library,) = (home / "kernels").glob("portable-*.so")
    assert report["command"] == "build-kernels"
    assert report["details"] == {"path": str(library), "target": "portable", "isa": "small", "compiled": True}
    assert [check["name"] for check in report["checks"]] == ["build_s", "library_kib"]


def test_what_this_processor_cannot_run_is_not_loaded(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_kernels, "missing_features", lambda _: ["avx2", "fma"])
    (home / "kernels.cpp").write_text("int not_ours() { return 0; }\n")
    assert main(["build-kernels", "--target", "avx2"]) == 0
    assert ": not for this processor, which lacks avx2, fma, " in capsys.readouterr().out


def test_the_compilers_words_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "kernels.cpp").write_text("#error something is wrong\n")
    assert main(["build-kernels"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "small++ failed with status 1:\n" in err
    assert "#error something is wrong" in err


def test_without_a_compiler(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(home))
    assert main(["build-kernels", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vidette: there is no C++ compiler: ")
