"""Get a model from a hub, by huggingface_hub: only files that are read here, and never ones that run code.

Small files come first, and a model that cannot be loaded is refused before its weights are fetched. Each file
is there whole or not at all, and the record that makes them a model is written last. What a pull that was cut
short has brought whole is kept for the next one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from vidette.errors import ModelError, UsageError
from vidette.models.hub import CACHE, HubName, Record, is_plain, read_record, write_record
from vidette.models.json_object import read_json
from vidette.models.load import load_token_table, read_info
from vidette.models.store import CONFIG_FILE, ModelSource, models_directory

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKENIZER_FILE: Final = "tokenizer.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
SMALL_FILES: Final = (
    CONFIG_FILE,
    "generation_config.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""What is read of a folder besides its weights."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf")
_LEFTOVER_SECONDS: Final = 3600


class Pulled(NamedTuple):
    """What became of a pull."""

    record: Record
    path: Path
    """What is loaded."""
    unchecked: str | None = None
    """Why the hub could not say whether there is something newer; None: it said that there is not."""


class _File(NamedTuple):
    size: int
    sha256: str | None
    """None: the hub does not tell, of small ones."""


class _Unreachable(ModelError):  # noqa: N818  named like the engine's errors
    """The hub gave no answer."""


def pull_from_hub(
    name: HubName,
    *,
    pattern: str | None = None,
    directory: Path | None = None,
    endpoint: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Pulled:
    """Make a model of a hub available.

    What is there and whole is kept. If the hub cannot be reached, so is what was pulled before.

    Args:
        name: of it.
        pattern: which GGUF file, such as `*Q4_K_M*`; one has to match.
        directory: of models (default: `models_directory()`); created if need be.
        endpoint: URL of the hub (default: $HF_ENDPOINT, or huggingface.co).
        say: called with a sentence before much is fetched. Progress bars are those of huggingface_hub.

    Raises:
        UsageError: huggingface_hub is not installed, or no file or several match.
        ModelError: it cannot be had, cannot be stored, or cannot be loaded here.
    """
    if name.file is not None and pattern is not None:
        raise UsageError(f"'{name}' names a file already; leave --file {pattern!r} away", param="file")
    directory = directory or models_directory()
    hub = _Hub(name, directory, endpoint)
    before = read_record(name, directory) if pattern is None else None
    if before is not None and before.lacks(directory) is not None:
        before = None
    if before is not None and _COMMIT.fullmatch(name.revision):
        return Pulled(before, before.path(directory))  # a commit does not change
    try:
        hub.look()
    except _Unreachable as exc:
        if before is None:
            raise
        return Pulled(before, before.path(directory), str(exc))
    _remove_leftovers(directory)
    file = _choose_gguf(name, pattern, hub.files)
    files = [file] if file is not None else hub.fetch_folder(say)
    if file is not None:
        hub.announce(files, say)
        path = hub.fetch(file)
        read_info(ModelSource(path.stem, path))
    record = Record(
        repo=name.repo,
        file=file,
        revision=name.revision,
        commit=hub.commit,
        files={each: hub.files[each].size for each in files},
    )
    try:
        write_record(record, directory)
    except OSError as exc:
        raise ModelError(f"cannot store the record of {name} in {directory}: {exc}") from exc
    return Pulled(record, record.path(directory))


def _choose_gguf(name: HubName, pattern: str | None, files: Iterable[str]) -> str | None:
    """Return the GGUF file to get; None: the folder."""
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if name.file is not None:
        if name.file not in ggufs:
            raise UsageError(f"{name.repo} has no file {name.file}; {_list(ggufs)}", param="file")
        chosen = [name.file]
    elif pattern is not None:
        chosen = [file for file in ggufs if fnmatch.fnmatch(file, pattern)]
        if not chosen:
            raise UsageError(f"no GGUF file of {name.repo} matches {pattern!r}; {_list(ggufs)}", param="file")
    elif {CONFIG_FILE} <= {*files} and {WEIGHTS, INDEX} & {*files}:
        return None
    else:
        chosen = ggufs
    if len(chosen) > 1:
        raise UsageError(
            f"which file of {name.repo}? Give --file and a pattern that one of these matches: "
            f"{', '.join(chosen)}",
            param="file",
        )
    if chosen and _PART.search(chosen[0]):
        raise ModelError(f"{chosen[0]} of {name.repo} is a part of a GGUF file; files in parts are not read")
    return chosen[0] if chosen else None


def _list(ggufs: list[str]) -> str:
    return f"there are {', '.join(ggufs)}" if ggufs else "it has no GGUF files"


class _Hub:
    """A hub, as far as one model of it goes.

    Args:
        name: of the model.
        directory: of models.
        endpoint: as for `pull_from_hub`.

    Attributes:
        files: what it has of the model, by name, once `look()` has returned; those whose names are not plain
            are left out.
        commit: of what revision that is.
    """

    def __init__(self, name: HubName, directory: Path, endpoint: str | None) -> None:
        try:
            from huggingface_hub import HfApi  # noqa: PLC0415
        except ImportError as exc:
            raise UsageError(
                f"'{name}' is a model of a hub, which takes huggingface_hub: `pip install 'vidette[hub]'`"
            ) from exc
        self.files: Mapping[str, _File] = {}
        self.commit = ""
        self._name = name
        self._cache = directory / CACHE
        self._api: HfApi = HfApi(endpoint=endpoint, library_name="vidette")

    def look(self) -> None:
        """Ask what there is.

        Raises:
            ModelError: there is no such model, or it is not for everybody.
        """
        try:
            info = self._api.model_info(self._name.repo, revision=self._name.revision, files_metadata=True)
        except Exception as exc:
            raise self._explain(exc) from exc
        if info.sha is None or _COMMIT.fullmatch(info.sha) is None:
            raise ModelError(f"{self._api.endpoint} names no commit of {self._name.repo}, but {info.sha!r}")
        self.commit = info.sha
        self.files = {
            each.rfilename: _File(each.size or 0, None if each.lfs is None else each.lfs.sha256)
            for each in info.siblings or ()
            if is_plain(each.rfilename)
        }

    def fetch_folder(self, say: Callable[[str], None]) -> list[str]:
        """Get the files of a folder; return their names.

        Raises:
            ModelError: it lacks what a model is made of, or cannot be loaded here.
        """
        self._check_folder()
        small = [file for file in SMALL_FILES if file in self.files]
        paths = [self.fetch(file) for file in small]
        source = ModelSource(str(self._name), paths[0].parent)
        read_info(source)
        load_token_table(source)
        weights = [WEIGHTS] if WEIGHTS in self.files else [INDEX, *self._shards()]
        self.announce(weights, say)
        for file in weights:
            self.fetch(file)
        return [*small, *weights]

    def _check_folder(self) -> None:
        repo, there = self._name.repo, {*self.files}
        if not {WEIGHTS, INDEX} & there:
            if pickled := sorted(file for file in there if file.endswith(_PICKLED)):
                raise ModelError(
                    f"{repo} has its weights in {pickled[0]}, a format that can run code when it is read: "
                    "it is not fetched; look for a copy of the model as *.safetensors or as GGUF"
                )
            raise ModelError(f"{repo} has neither {WEIGHTS} nor {INDEX} nor a GGUF file of a plain name")
        if lacking := sorted({CONFIG_FILE, TOKENIZER_FILE} - there):
            raise ModelError(f"{repo} has no {lacking[0]}, without which it cannot be loaded here")

    def _shards(self) -> list[str]:
        weight_map = read_json(self.fetch(INDEX)).child("weight_map")
        shards = sorted({weight_map.string(tensor) for tensor in weight_map.values})
        for shard in shards:
            if PurePosixPath(shard).name != shard or not shard.endswith(".safetensors"):
                raise ModelError(
                    f"{INDEX} of {self._name.repo} names {shard!r}, no safetensors file beside it"
                )
            if shard not in self.files:
                raise ModelError(f"{self._name.repo} has no {shard}, which its {INDEX} names")
        return shards

    def announce(self, files: Iterable[str], say: Callable[[str], None]) -> None:
        """Say how much is about to be fetched."""
        sizes = [self.files[file].size for file in files]
        many = "a file" if len(sizes) == 1 else f"{len(sizes)} files"
        say(f"getting {self._name} at {self.commit[:12]}: weights in {many}, {sum(sizes) / 1e9:.2f} GB")

    def fetch(self, file: str) -> Path:
        """Get a file, unless it is there; return where it is.

        Raises:
            ModelError: it cannot be had, or is not what the hub said.
        """
        expected = self.files[file]
        try:
            path = Path(
                self._api.hf_hub_download(self._name.repo, file, revision=self.commit, cache_dir=self._cache)
            )
        except Exception as exc:
            raise self._explain(exc, file) from exc
        actual = path.stat().st_size
        if actual != expected.size:
            self._discard(path, file, f"it has {actual} bytes instead of {expected.size}")
        if expected.sha256 is not None:
            with path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if digest != expected.sha256:
                self._discard(path, file, f"its SHA-256 is {digest} instead of {expected.sha256}")
        return path

    def _discard(self, path: Path, file: str, why: str) -> None:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelError(f"{file} of {self._name.repo} came damaged and was removed: {why}; try again")

    def _explain(self, error: Exception, file: str | None = None) -> ModelError:
        """Return what to raise of what the library raised."""
        from huggingface_hub import errors  # noqa: PLC0415

        repo, endpoint = self._name.repo, self._api.endpoint
        if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # it asked, and then looked into its cache
        if isinstance(error, errors.GatedRepoError):
            return ModelError(
                f"{repo} is for those who have agreed to its terms: agree at {endpoint}/{repo}, and set "
                "HF_TOKEN to a token of your account"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return ModelError(f"{repo} on {endpoint} has no revision {self._name.revision!r}")
        if isinstance(error, errors.RepositoryNotFoundError):
            return ModelError(
                f"there is no model {repo} on {endpoint}, or it is private, and HF_TOKEN is no token of "
                "somebody who sees it"
            )
        if isinstance(error, errors.OfflineModeIsEnabled):
            return _Unreachable(f"HF_HUB_OFFLINE is set, so {endpoint} is not asked for {repo}")
        what = repo if file is None else f"{file} of {repo}"
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, errors.HfHubHTTPError):
            kind = _Unreachable if error.response.status_code >= 500 else ModelError
            return kind(f"{endpoint} does not give {what}: {said}")
        if isinstance(error, OSError) and error.errno is not None:
            return ModelError(f"cannot store {what} in {self._cache}: {error}")
        return _Unreachable(
            f"{endpoint} cannot be asked for {what}: {said}; look at the network and HF_ENDPOINT"
        )


def _remove_leftovers(directory: Path) -> None:
    """Remove what a pull that was killed has left, unless it is so new that it may be another one at work."""
    for path in (directory / CACHE).glob("models--*/blobs/*.incomplete"):
        try:
            if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                path.unlink()
        except FileNotFoundError:  # it was at work, and has ended
            continue
