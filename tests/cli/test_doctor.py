"""`vidette doctor`: what is found, what is advised, and when an engine cannot run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from vidette.cli import _findings, main
from vidette.cli._findings import (
    EXTRAS,
    PYTHON,
    Finding,
    can_run,
    look_at_kernels,
    look_at_loops,
    look_at_machine,
    look_at_models,
    look_at_open_files,
    look_at_packages,
    look_at_python,
    look_at_shared_memory,
    version_fits,
)
from vidette.models import KNOWN_MODELS
from vidette.models.hub import Record, write_record

ROOT = Path(__file__).parents[2]
SMOLLM2 = "smollm2-135m-instruct"


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


def by_name(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def test_here_an_engine_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.endswith("\nan engine can run\n")
    assert re.search(r"^  ok       Python: 3\.", out, re.MULTILINE)


def test_it_says_the_same_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert (report["command"], report["can_run"]) == ("doctor", True)
    for finding in report["findings"]:
        assert finding.keys() == {"area", "name", "state", "text", "advice", "needed"}
        assert finding["state"] in ("ok", "missing", "problem")
        assert bool(finding["advice"]) == (finding["state"] != "ok"), finding
        assert finding["advice"] == "" or re.search(r"[^.]\.$", finding["advice"]), finding


def test_it_imports_no_torch() -> None:
    code = "import sys; from vidette.cli import main; main(['doctor']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_what_is_needed_and_lacks_is_exit_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIDETTE_KERNELS", "sse")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem  VIDETTE_KERNELS: VIDETTE_KERNELS is 'sse'; it must be one of off, native" in out
    assert out.endswith("\nan engine cannot run: see VIDETTE_KERNELS\n")


def test_what_the_project_says_of_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"].keys() == EXTRAS.keys()
    assert project["requires-python"] == f">={PYTHON[0]}.{PYTHON[1]}"
    extras = project["optional-dependencies"].items()
    requirements = project["dependencies"] + [
        f'{requirement}; extra == "{extra}"' for extra, several in extras for requirement in several
    ]
    found = look_at_packages(requirements, lambda _: None)
    assert len(found) == len(requirements)
    assert {finding.area for finding in found if not finding.needed} == {f"extra {extra}" for extra in EXTRAS}


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("0.18.0", ">=0.18,<0.19", True),
        ("0.19", ">=0.18,<0.19", False),
        ("0.17.9", ">=0.18,<0.19", False),
        ("3.1.10", ">=3.1.6", True),
        ("2.13.0+cpu", ">=2.6", True),
        ("2.6", "==2.6.0", True),
        ("2.6", "!=2.6.0", False),
        ("1", "", True),
        ("unknown", ">=1", False),
    ],
)
def test_ranges(version: str, wanted: str, fits: bool) -> None:
    assert version_fits(version, wanted) is fits


def test_packages() -> None:
    versions = {"anyio": "4.14", "torch": "2.5.1"}
    found = look_at_packages(
        ["anyio>=4.14", "torch>=2.6", "h11>=0.16", "pyzmq>=27.0; extra == 'bench'"], versions.get
    )
    assert states(found) == {"anyio": "ok", "torch": "problem", "h11": "missing", "pyzmq": "missing"}
    assert by_name(found, "torch").advice == "Get it with `pip install 'torch>=2.6'`."
    assert by_name(found, "pyzmq").advice == "Get it with `pip install 'vidette[bench]'`."
    assert "baselines" in by_name(found, "pyzmq").text
    assert not can_run(found)
    assert can_run([by_name(found, "anyio"), by_name(found, "pyzmq")])
    assert states(look_at_packages(None, versions.get)) == {"vidette": "problem"}


def test_python_and_loops() -> None:
    assert can_run(look_at_python((3, 14, 0), "linux"))
    assert states(look_at_python((3, 10, 9), "darwin")) == {"Python": "problem", "system": "problem"}
    assert not can_run(look_at_python((3, 10, 9), "linux"))
    assert states(look_at_loops({"trio": "0.31"}.get)) == {"asyncio": "ok", "trio": "ok", "uvloop": "missing"}


def test_models(tmp_path: Path) -> None:
    found = look_at_models(tmp_path)
    assert states(found) == {"toy": "ok"} | dict.fromkeys(KNOWN_MODELS, "missing")
    assert f"`vidette pull {SMOLLM2}`" in by_name(found, SMOLLM2).advice
    known = KNOWN_MODELS[SMOLLM2]
    path = tmp_path / known.file_name
    path.write_bytes(b"short")
    assert by_name(look_at_models(tmp_path), SMOLLM2).state == "problem"
    os.truncate(path, known.size)
    assert by_name(look_at_models(tmp_path), SMOLLM2).state == "ok"
    assert can_run(found)


def test_models_of_a_hub(tmp_path: Path) -> None:
    record = Record(repo="org/tiny", file=None, revision="v1", commit="0" * 40, files={"config.json": 2})
    write_record(record, tmp_path)
    found = by_name(look_at_models(tmp_path), "org/tiny@v1")
    assert (found.state, found.advice) == ("problem", "Get it again with `vidette pull org/tiny@v1`.")
    record.snapshot(tmp_path).mkdir(parents=True)
    (record.snapshot(tmp_path) / "config.json").write_text("{}")
    assert by_name(look_at_models(tmp_path), "org/tiny@v1").state == "ok"
    (path,) = (tmp_path / "pulled").rglob("*.json")
    path.write_text("{")
    assert by_name(look_at_models(tmp_path), "pulled").state == "problem"


def test_kernels_that_nobody_compiles(tmp_path: Path) -> None:
    directory = tmp_path / "kernels"
    environ = {"PATH": os.fspath(tmp_path)}
    found = look_at_kernels(environ, directory)
    assert states(found) == {"compiler": "missing", "directory": "ok", "library": "missing"}
    assert can_run(found)
    assert not directory.exists(), "it only looks"
    found = look_at_kernels({**environ, "VIDETTE_KERNELS": "off"}, directory)
    assert by_name(found, "library").text == "VIDETTE_KERNELS is off"


def test_kernels_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = by_name(look_at_kernels({"PATH": ""}, tmp_path), "directory")
    assert (found.state, f"chmod go-w {tmp_path}" in found.advice) == ("problem", True)
    tmp_path.chmod(0o700)
    assert by_name(look_at_kernels({"PATH": ""}, tmp_path), "directory").state == "ok"


def test_a_library_that_does_not_load_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "native.so"
    library.write_bytes(b"no library")
    find: Callable[..., Path] = lambda **_: library  # noqa: E731
    monkeypatch.setattr(_findings, "find_kernels", find)
    found = by_name(look_at_kernels({"PATH": ""}, tmp_path), "library")
    assert found.state == "problem"
    assert "--force" in found.advice


def test_memory_is_that_of_the_own_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  4194304 kB\n")
    roomy = by_name(look_at_machine(cgroup=tmp_path, meminfo=meminfo), "memory")
    assert (roomy.state, roomy.text) == ("ok", "4.0 GiB of 8.0 GiB are free")
    (tmp_path / "memory.max").write_text("max\n")
    assert by_name(look_at_machine(cgroup=tmp_path, meminfo=meminfo), "memory") == roomy
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    tight = by_name(look_at_machine(cgroup=tmp_path, meminfo=meminfo), "memory")
    assert (tight.state, tight.text) == ("problem", f"{roomy.text}; 512 MiB is the limit of this group")
    assert by_name(look_at_machine(cgroup=tmp_path, meminfo=tmp_path / "no"), "memory").state == "problem"


def test_limits(tmp_path: Path) -> None:
    assert [look_at_open_files(soft)[0].state for soft in (-1, 1024, 256)] == ["ok", "ok", "problem"]
    (gone,) = look_at_shared_memory(tmp_path / "shm")
    assert (gone.state, gone.needed) == ("missing", False)
