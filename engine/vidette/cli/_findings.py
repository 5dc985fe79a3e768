"""What `vidette doctor` looks at.

Each function returns what it finds; none downloads, compiles or changes anything.
"""

from __future__ import annotations

import importlib.metadata
import operator
import os
import re
import resource
import shlex
import stat
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from vidette.errors import KernelError, ModelError, UsageError
from vidette.kernels.build import NoCompiler, find_compiler, find_kernels
from vidette.kernels.cache import kernels_directory
from vidette.kernels.library import VARIABLE, choose_target, load_kernels
from vidette.kernels.processors import CGROUP, usable_processors
from vidette.kernels.target import missing_features

PYTHON: Final = (3, 11)
"""The oldest that will do; pyproject.toml says the same."""
EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bench": "the baselines and pictures of `vidette bench`",
        "fuzz": "`vidette fuzz`, and property tests with the test kit",
        "hub": "`vidette pull ORG/NAME`",
        "metrics": "what Prometheus scrapes",
        "otel": "spans of requests, for OpenTelemetry",
        "pydantic": "our structs as bodies of a FastAPI app",
    }
)
"""What each extra is for."""
ENOUGH_FILES: Final = 1024
"""With fewer open files a service has room for few connections."""
ENOUGH_MEMORY: Final = 1 << 30
"""Bytes that torch and a small model take."""
ENOUGH_SHARED: Final = 64 << 20
"""Bytes of shared memory; containers have so much by default."""

MEMINFO: Final = Path("/proc/meminfo")
SHARED: Final = Path("/dev/shm")  # noqa: S108  where named shared memory is; not a place for temporary files

_REQUIREMENT: Final = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)\)?(?:;.*extra\s*==\s*['\"]([^'\"]+))?"
)
_CLAUSE: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        ">": operator.gt,
    }
)
_PARTS: Final = 6

State = Literal["ok", "missing", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Args:
        area: what it belongs to.
        name: of the thing.
        state: "missing" is not there, and "problem" is there and not as it should be.
        text: what was found.
        advice: what to do about it, in one sentence; empty if nothing.
        needed: whether no engine runs unless it is ok.
    """

    area: str
    name: str
    state: State
    text: str
    advice: str = ""
    needed: bool = False


def can_run(findings: Sequence[Finding]) -> bool:
    """Return whether an engine can run, by what was found."""
    return all(finding.state == "ok" for finding in findings if finding.needed)


def examine(*, torch: bool = False) -> list[Finding]:
    """Look at all of it.

    Args:
        torch: whether torch is imported and asked for devices, which takes seconds.
    """
    try:
        requirements = importlib.metadata.requires("vidette")
    except importlib.metadata.PackageNotFoundError:
        requirements = None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        *look_at_python(sys.version_info[:3], sys.platform),
        *look_at_packages(requirements, installed_version),
        *look_at_loops(installed_version),
        *look_at_models(),
        *look_at_kernels(os.environ),
        *look_at_machine(),
        *look_at_open_files(soft),
        *look_at_shared_memory(),
        *look_at_cuda(torch=torch),
    ]


def installed_version(name: str) -> str | None:
    """Return the version of a package; None: it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_python(version: Sequence[int], platform: str) -> list[Finding]:
    """Look at the interpreter.

    Args:
        version: of it.
        platform: as `sys.platform` has it.
    """
    right = tuple(version) >= PYTHON
    linux = platform.startswith("linux")
    return [
        Finding(
            area="python",
            name="Python",
            state="ok" if right else "problem",
            text=".".join(map(str, version)),
            advice="" if right else f"Install Python {'.'.join(map(str, PYTHON))} or newer.",
            needed=True,
        ),
        Finding(
            area="python",
            name="system",
            state="ok" if linux else "problem",
            text=platform,
            advice="" if linux else "Run it on Linux, on whose pidfd and eventfd it stands.",
            needed=True,
        ),
    ]


def look_at_packages(
    requirements: Sequence[str] | None, version_of: Callable[[str], str | None]
) -> list[Finding]:
    """Look at each package that is required, and at those of the extras.

    Args:
        requirements: as the metadata of vidette has them; None: it has no metadata.
        version_of: returns the version of a package, None if it is not installed.
    """
    if requirements is None:
        return [
            Finding(
                area="packages",
                name="vidette",
                state="problem",
                text="runs without being installed, so the ranges of its packages are not known",
                advice="Install it with `pip install`.",
            )
        ]
    found = []
    for requirement in requirements:
        if (match := _REQUIREMENT.match(requirement)) is None:
            continue
        name, wanted, extra = match[1], match[2].strip(), match[3]
        version = version_of(name)
        install = f"`pip install 'vidette[{extra}]'`" if extra else f"`pip install '{name}{wanted}'`"
        purpose = f", for {EXTRAS.get(extra, extra)}" if extra else ""
        state: State = "missing" if version is None else "ok" if version_fits(version, wanted) else "problem"
        found.append(
            Finding(
                area=f"extra {extra}" if extra else "packages",
                name=name,
                state=state,
                text=f"{version or 'not installed'} ({wanted or 'any'}){purpose}",
                advice="" if state == "ok" else f"Get it with {install}.",
                needed=not extra,
            )
        )
    return found


def version_fits(version: str, wanted: str) -> bool:
    """Return whether a version is in a range such as ">=0.18,<0.19", by the numbers of its release."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    if release is None:
        return False
    mine = _numbers(release[0])
    clauses = _CLAUSE.findall(wanted)
    return all(_COMPARE[compare](mine, _numbers(bound)) for compare, bound in clauses)


def _numbers(release: str) -> tuple[int, ...]:
    numbers = [int(number) for number in release.split(".")]
    return tuple((numbers + [0] * _PARTS)[:_PARTS])


def look_at_loops(version_of: Callable[[str], str | None]) -> list[Finding]:
    """Look at the event loop libraries.

    Args:
        version_of: as for `look_at_packages`.
    """
    found = [Finding(area="event loops", name="asyncio", state="ok", text="part of Python")]
    for name, what in (("trio", "for --backend trio"), ("uvloop", "a faster loop for `vidette serve`")):
        version = version_of(name)
        found.append(
            Finding(
                area="event loops",
                name=name,
                state="missing" if version is None else "ok",
                text=f"{version or 'not installed'}, {what}",
                advice="" if version else f"Get it with `pip install {name}`.",
            )
        )
    return found


def look_at_models(directory: Path | None = None) -> list[Finding]:
    """Look which models are there, known ones and pulled ones; sizes are compared, checksums are not.

    Args:
        directory: of pulled models (default: `models_directory()`).
    """
    from vidette.models import KNOWN_MODELS, models_directory, pulled_models, resolve  # noqa: PLC0415

    try:
        directory = directory or models_directory()
    except RuntimeError as error:  # a user without a home
        advice = "Set VIDETTE_HOME to a folder of yours."
        return [Finding(area="models", name="directory", state="problem", text=str(error), advice=advice)]
    found = [Finding(area="models", name="toy", state="ok", text="built in; it answers nonsense")]
    for name, model in KNOWN_MODELS.items():
        path = directory / model.file_name
        get = f"Get it with `vidette pull {name}`, {_size(model.size)} under: {model.terms}."
        try:
            there = path.is_file()
            if there:
                resolve(name, directory=directory)
        except (ModelError, OSError) as error:
            state: State = "problem"
            text = str(error)
        else:
            state = "ok" if there else "missing"
            text = f"{path}, {_size(model.size)}" if there else f"not at {path}"
        advice = "" if state == "ok" else get
        found.append(Finding(area="models", name=name, state=state, text=text, advice=advice))
    try:
        pulled = pulled_models(directory)
    except (ModelError, OSError) as error:
        return [*found, Finding(area="models", name="pulled", state="problem", text=str(error))]
    for name, record in pulled.items():
        lacks = record.lacks(directory)
        text = lacks or f"{record.path(directory)}, {_size(sum(record.files.values()))}"
        advice = "" if lacks is None else f"Get it again with `{record.name.command}`."
        state = "ok" if lacks is None else "problem"
        found.append(Finding(area="models", name=name, state=state, text=text, advice=advice))
    return found


def look_at_kernels(environ: Mapping[str, str], directory: Path | None = None) -> list[Finding]:
    """Look at the native kernels: the compiler, their directory, and whether they are compiled.

    Args:
        environ: the environment.
        directory: where libraries are kept (default: `kernels_directory()`).
    """
    area = "native kernels"
    try:
        compiler = find_compiler(environ)
    except NoCompiler as error:
        advice = "Install g++ or clang++ with C++20, or set CXX: torch alone is several times slower."
        found = [Finding(area=area, name="compiler", state="missing", text=str(error), advice=advice)]
    else:
        text = f"{shlex.join(compiler.command)}: {compiler.version.partition(chr(10))[0]}"
        found = [Finding(area=area, name="compiler", state="ok", text=text)]
    try:
        directory = directory or kernels_directory(environ)
        target = choose_target(environ)
        found.append(_look_at_directory(area, directory))
        if target is None:
            text, advice = f"{VARIABLE} is off", f"Unset {VARIABLE}, unless torch alone is what you want."
            found.append(Finding(area=area, name="library", state="missing", text=text, advice=advice))
            return found
        if lacking := missing_features(target):
            raise KernelError(f"this processor lacks {', '.join(lacking)} for {target}")
        library = find_kernels(target=target, directory=directory)
        isa = None if library is None else load_kernels(library).isa
    except UsageError as error:
        advice = f"Set {VARIABLE} to one of these, or unset it."
        found.append(
            Finding(area=area, name=VARIABLE, state="problem", text=str(error), advice=advice, needed=True)
        )
    except (KernelError, OSError) as error:
        advice = "Try `vidette build-kernels --force`; until then torch computes alone, several times slower."
        found.append(Finding(area=area, name="library", state="problem", text=str(error), advice=advice))
    else:
        if library is None:
            text, advice = (
                f"not compiled for {target}",
                "Compile them with `vidette build-kernels`, or the first use does.",
            )
            found.append(Finding(area=area, name="library", state="missing", text=text, advice=advice))
        else:
            found.append(Finding(area=area, name="library", state="ok", text=f"{library}, for {isa}"))
    return found


def _look_at_directory(area: str, directory: Path) -> Finding:
    """Look who may write to the directory of kernels, or who could make it."""
    try:
        status = directory.stat()
    except OSError:
        above = next((path for path in directory.parents if path.exists()), Path("/"))
        writable = os.access(above, os.W_OK)
        text = f"{directory} is made on first use" if writable else f"{directory} cannot be made in {above}"
        state: State = "ok" if writable else "problem"
        advice = "" if writable else "Set VIDETTE_HOME to a folder of yours."
    else:
        text, state, advice = f"{directory}, mode {stat.S_IMODE(status.st_mode):o}", "ok", ""
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
            text, state = f"{directory} is no folder of yours", "problem"
            advice = "Set VIDETTE_HOME to a folder of yours."
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            text, state = f"{text}: others may write to it, so nothing is loaded from there", "problem"
            advice = f"Run `chmod go-w {directory}`, if nobody has written to it."
        elif not os.access(directory, os.W_OK):
            text, state = f"{text}: you may not write to it, so nothing new is compiled", "problem"
            advice = "Make it writable for you, or set VIDETTE_HOME to a folder of yours."
    return Finding(area=area, name="directory", state=state, text=text, advice=advice)


def look_at_machine(*, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> list[Finding]:
    """Look at processors and memory.

    Args:
        cgroup: where the limits of the own group are.
        meminfo: where the kernel tells what memory there is.
    """
    count = usable_processors(cgroup)
    found = [Finding(area="machine", name="processors", state="ok", text=f"{count} usable")]
    try:
        sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE))
        total, free = int(sizes["MemTotal"]) << 10, int(sizes["MemAvailable"]) << 10
    except (OSError, KeyError) as error:
        text, advice = f"{meminfo} does not tell: {error}", "Mount /proc."
        return [*found, Finding(area="machine", name="memory", state="problem", text=text, advice=advice)]
    text = f"{_size(free)} of {_size(total)} are free"
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = int((cgroup / name).read_text())
        except (OSError, ValueError):  # no such group, or no limit
            continue
        if limit < total:
            text, free = f"{text}; {_size(limit)} is the limit of this group", min(free, limit)
    enough = free >= ENOUGH_MEMORY
    return [
        *found,
        Finding(
            area="machine",
            name="memory",
            state="ok" if enough else "problem",
            text=text,
            advice="" if enough else f"Free some: torch and a small model take about {_size(ENOUGH_MEMORY)}.",
        ),
    ]


def look_at_open_files(soft: int) -> list[Finding]:
    """Look at the limit of open files.

    Args:
        soft: the limit; negative: there is none.
    """
    enough = soft < 0 or soft >= ENOUGH_FILES
    return [
        Finding(
            area="limits",
            name="open files",
            state="ok" if enough else "problem",
            text="no limit" if soft < 0 else f"{soft}, of which each connection to a service takes one",
            advice="" if enough else f"Raise it with `ulimit -n {ENOUGH_FILES}` or more.",
        )
    ]


def look_at_shared_memory(directory: Path = SHARED) -> list[Finding]:
    """Look at named shared memory, through which large tensors can go.

    Args:
        directory: where it is.
    """
    name, area = str(directory), "limits"
    try:
        status = os.statvfs(directory)
    except OSError as error:
        text, advice = error.strerror or str(error), f"Mount a tmpfs at {directory}."
        return [Finding(area=area, name=name, state="missing", text=text, advice=advice)]
    free = status.f_bavail * status.f_frsize
    text, advice = f"{_size(free)} free", ""
    if not os.access(directory, os.W_OK | os.X_OK):
        text, advice = "you may not write to it", f"Run `chmod 1777 {directory}` as root."
    elif free < ENOUGH_SHARED:
        advice = f"Remove what is left in {directory}, or make it larger (`docker run --shm-size=1g`)."
    return [Finding(area=area, name=name, state="problem" if advice else "ok", text=text, advice=advice)]


def look_at_cuda(*, torch: bool) -> list[Finding]:
    """Look at CUDA as torch sees it.

    Args:
        torch: whether torch is imported; otherwise only what it was built for is told.
    """
    built = installed_version("torch")
    if not torch:
        text = f"torch {built} was not asked" if built else "there is no torch to ask"
        advice = "Ask it with `vidette doctor --torch`, which takes seconds."
        return [Finding(area="cuda", name="CUDA", state="missing", text=text, advice=advice)]
    try:
        import torch as library  # noqa: PLC0415  takes seconds
    except (ImportError, OSError) as error:
        advice = "Install torch anew, with `pip install --force-reinstall torch`."
        return [
            Finding(area="cuda", name="torch", state="problem", text=str(error), advice=advice, needed=True)
        ]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        there = library.cuda.is_available()
        names = [library.cuda.get_device_name(index) for index in range(library.cuda.device_count())]
    if there:
        text = f"{library.version.cuda}, {', '.join(names)}"
        return [Finding(area="cuda", name="CUDA", state="ok", text=text)]
    if library.version.cuda is None:
        text, advice = (
            f"torch {library.__version__} is built without",
            "Install a torch with CUDA to use a device.",
        )
    else:
        said = f": {heard[0].message}" if heard else ""
        text, advice = f"torch finds no device{said}", "Look whether `nvidia-smi` finds one."
    return [Finding(area="cuda", name="CUDA", state="missing", text=text, advice=advice)]


def _size(count: float) -> str:
    """Return a number of bytes for people."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
