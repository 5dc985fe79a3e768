"""Where models are looked for, and what is said when they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidette.errors import ModelError, UsageError
from vidette.models import KNOWN_MODELS, ModelSource, models_directory, resolve

NAME = "smollm2-135m-instruct"


def _pretend_pulled(directory: Path, size: int) -> Path:
    """A sparse file of the given size: as far as `resolve` looks."""
    path = directory / KNOWN_MODELS[NAME].file_name
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VIDETTE_HOME": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/models")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/vidette/models")),
        ({"VIDETTE_HOME": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache/vidette/models"),
        ({}, Path.home() / ".cache/vidette/models"),
    ],
)
def test_the_directory_of_models(environ: dict[str, str], expected: Path) -> None:
    assert models_directory(environ) == expected


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path))
    assert models_directory() == tmp_path / "models"
    with pytest.raises(ModelError, match=str(tmp_path)):
        resolve(NAME)


def test_the_toy_needs_no_file() -> None:
    assert resolve("toy") == ModelSource("toy", None)


def test_a_pulled_model_is_found_by_name(tmp_path: Path) -> None:
    path = _pretend_pulled(tmp_path, KNOWN_MODELS[NAME].size)
    assert resolve(NAME, directory=tmp_path) == ModelSource(NAME, path)


def test_a_model_that_was_not_pulled_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"get it with `vidette pull {NAME}`"):
        resolve(NAME, directory=tmp_path)


def test_a_truncated_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    _pretend_pulled(tmp_path, 1000)
    with pytest.raises(ModelError, match=f"has 1000 bytes instead of .*`vidette pull {NAME}`"):
        resolve(NAME, directory=tmp_path)


def test_a_file_is_found_by_path(tmp_path: Path) -> None:
    path = tmp_path / "my.model.gguf"
    with pytest.raises(ModelError, match=r"no model file at .*my\.model\.gguf"):
        resolve(str(path))
    path.touch()
    assert resolve(str(path)) == ModelSource("my.model", path)


def _folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).touch()
    return path


def test_a_directory_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _folder(
        tmp_path / "My-Model-1B", "config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin"
    )
    assert resolve(str(path)) == ModelSource("My-Model-1B", path)
    assert resolve(f"{path}/") == ModelSource("My-Model-1B", path)
    monkeypatch.chdir(path)
    assert resolve(".") == ModelSource("My-Model-1B", Path())


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (
            [],
            r"has no config\.json; a model's directory has config\.json, \*\.safetensors and tokenizer\.json",
        ),
        (["model.safetensors"], r"has no config\.json; "),
        (["adapter_config.json", "adapter_model.safetensors"], "it is an adapter, not a whole model"),
        (["config.json", "b.gguf", "a.gguf"], r"give the path of the file in it, such as .*/m/a\.gguf"),
        (
            ["config.json", "pytorch_model.bin"],
            r"weights in pytorch_model\.bin, .*get the model as \*\.safetensors",
        ),
        (["config.json", "consolidated.00.pth"], r"weights in consolidated\.00\.pth"),
        (["config.json", "tokenizer.json"], r"no weights: there is config\.json, but no \*\.safetensors"),
    ],
)
def test_a_directory_that_cannot_be_loaded_is_refused_with_what_would_be_right(
    names: list[str], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=fault):
        resolve(str(_folder(tmp_path / "m", *names)))


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "./some/where"])
def test_what_cannot_be_a_path_is_an_unknown_name(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown model .*directory with config\.json"):
        resolve(name)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=f"unknown model 'gpt-7': .*toy, {NAME}"):
        resolve("gpt-7")
