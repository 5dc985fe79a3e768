"""Models that were pulled from a hub: their names, and where they are.

Files are in `hub` below the directory of models, as huggingface_hub keeps them. A record beside that, in
`pulled`, is written when all files of a model are there, and is what makes it one.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from vidette.errors import ModelError

CACHE: Final = "hub"
RECORDS: Final = "pulled"
REVISION: Final = "main"
"""What is pulled unless another revision is named."""

_PLAIN: Final = r"[\w.+][\w./+-]*"
_NAME: Final = re.compile(
    rf"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:/(?P<file>{_PLAIN}\.gguf))?(?:@(?P<revision>{_PLAIN}))?",
    re.ASCII,
)
_FOLDER: Final = "folder.json"


class HubName(NamedTuple):
    """What `ORG/NAME`, `ORG/NAME/FILE.gguf` and either with `@REVISION` say."""

    repo: str
    file: str | None = None
    """A GGUF file of it; None: the folder, or the one GGUF file that there is."""
    revision: str = REVISION
    """A branch, a tag or a commit."""

    def __str__(self) -> str:
        """Return what `--model` takes."""
        path = self.repo if self.file is None else f"{self.repo}/{self.file}"
        return path if self.revision == REVISION else f"{path}@{self.revision}"

    @property
    def command(self) -> str:
        """What gets it."""
        return f"vidette pull {self}"


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """A model that was pulled, whole.

    Args:
        repo: `ORG/NAME`.
        file: as in `HubName`.
        revision: as it was asked for.
        commit: what that was then.
        files: their sizes in bytes, by name.
    """

    repo: str
    file: str | None
    revision: str
    commit: str
    files: dict[str, int]

    @property
    def name(self) -> HubName:
        """What it was asked for as."""
        return HubName(self.repo, self.file, self.revision)

    def snapshot(self, directory: Path) -> Path:
        """Return the folder of its files.

        Args:
            directory: of models.
        """
        return directory / CACHE / f"models--{self.repo.replace('/', '--')}" / "snapshots" / self.commit

    def path(self, directory: Path) -> Path:
        """Return what is loaded: the folder, or the GGUF file.

        Args:
            directory: of models.
        """
        return self.snapshot(directory) / (self.file or "")

    def lacks(self, directory: Path) -> str | None:
        """Return what is not as it was pulled; None: nothing.

        Args:
            directory: of models.
        """
        for file, size in self.files.items():
            path = self.snapshot(directory) / file
            try:
                actual = path.stat().st_size
            except OSError as exc:
                return f"{path}: {exc.strerror}"
            if actual != size:
                return f"{path} has {actual} bytes instead of {size}"
        return None


def parse_hub_name(text: str) -> HubName | None:
    """Return what a name of a model on a hub says; None: it is no such name."""
    match = _NAME.fullmatch(text)
    if match is None or ".." in text or "--" in match["repo"]:
        return None
    return HubName(match["repo"], match["file"], match["revision"] or REVISION)


def is_plain(file: str) -> bool:
    """Return whether the name of a file says nothing to a terminal, a shell or a file system but what it is.

    It has letters, digits and "._/+-" alone, no "..", and begins with neither "/" nor "-".
    """
    return re.fullmatch(_PLAIN, file, re.ASCII) is not None and ".." not in file


def find_pulled(name: HubName, directory: Path) -> Path:
    """Return where a model is that was pulled.

    Args:
        name: of it.
        directory: of models.

    Raises:
        ModelError: it was not pulled, is no longer whole, or is one of several files.
    """
    record = read_record(name, directory)
    if record is None:
        raise ModelError(
            f"nothing is at {name}, and no model of that name was pulled; get it from the hub with "
            f"`{name.command}`"
        )
    if (wrong := record.lacks(directory)) is not None:
        raise ModelError(f"model '{name}' is not whole: {wrong}; get it again with `{record.name.command}`")
    return record.path(directory)


def read_record(name: HubName, directory: Path) -> Record | None:
    """Return the record of a model; None: it was not pulled.

    Args:
        name: of it.
        directory: of models.

    Raises:
        ModelError: several files were pulled, and the name says none of them.
    """
    folder = _folder_of(name, directory)
    if name.file is not None:
        return _read(folder / _file_of(name))
    if (record := _read(folder / _FOLDER)) is not None:
        return record
    found = [record for record in _records(folder) if record.file is not None]
    if len(found) > 1:
        names = ", ".join(str(record.name) for record in found)
        raise ModelError(f"several files of '{name}' were pulled: name one of {names}")
    return found[0] if found else None


def write_record(record: Record, directory: Path) -> None:
    """Make files that are there a model.

    Args:
        record: of it.
        directory: of models.
    """
    path = _folder_of(record.name, directory) / _file_of(record.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def pulled_models(directory: Path) -> Mapping[str, Record]:
    """Return the records of all models that were pulled, by the names that `--model` takes.

    Args:
        directory: of models.
    """
    folders = sorted((directory / RECORDS).glob("*@*"))
    return {str(record.name): record for folder in folders for record in _records(folder)}


def _folder_of(name: HubName, directory: Path) -> Path:
    # No repository has two dashes in a row in its name, and what is quoted has no slash.
    return directory / RECORDS / f"{name.repo.replace('/', '--')}@{quote(name.revision, safe='')}"


def _file_of(name: HubName) -> str:
    return _FOLDER if name.file is None else f"{quote(name.file, safe='')}.json"


def _records(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.json")):
        if (record := _read(path)) is not None:
            yield record


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as exc:
        raise ModelError(
            f"the record {path} cannot be read: {exc}; remove it and pull the model again"
        ) from exc
