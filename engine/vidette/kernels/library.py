"""Loads the native kernels, or says why there are none."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from vidette.errors import KernelError, UsageError
from vidette.kernels.build import NoCompiler, compile_kernels, find_kernels
from vidette.kernels.cache import check_trust
from vidette.kernels.target import TARGETS, Target, missing_features

logger = logging.getLogger(__name__)

ABI: Final = 2
"""Of what the library exports; `vidette_kernels_abi()` of `source/kernels.cpp` says the same."""
VARIABLE: Final = "VIDETTE_KERNELS"
"""In the environment: a target, or "off"."""


class Kernels(NamedTuple):
    """The native kernels, loaded.

    Args:
        library: its calls release the GIL.
        path: where it is.
        isa: the instruction set that it was compiled for: "avx512-vnni", "avx2" or "portable".
    """

    library: ctypes.CDLL
    path: Path
    isa: str


class Opened(NamedTuple):
    """What became of opening the kernels.

    Args:
        kernels: None if there are none.
        reason: why there are none; empty if there are some.
    """

    kernels: Kernels | None
    reason: str = ""


def open_kernels(
    *,
    directory: Path | None = None,
    compiler: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Opened:
    """Load the native kernels for this machine, compiled if need be; without them torch has to do.

    What is lost is said in a warning of the log, unless $VIDETTE_KERNELS asks for it.

    Args:
        directory: where libraries are kept (default: `kernels_directory()`).
        compiler: which one to use (default: `find_compiler()`).
        environ: the environment to look for VIDETTE_KERNELS in (default: the process's).

    Raises:
        UsageError: VIDETTE_KERNELS is neither a target nor "off".
    """
    target = choose_target(environ)
    if target is None:
        return Opened(None, f"{VARIABLE} is off")
    try:
        if missing := missing_features(target):
            raise KernelError(
                f"this processor cannot run kernels for {target}: it lacks {', '.join(missing)}"
            )
        return Opened(load_kernels(_find_or_compile(target, directory, compiler)))
    except KernelError as error:
        logger.warning(
            "the model is computed by torch alone, several times slower than native kernels would: %s", error
        )
        return Opened(None, str(error))


def choose_target(environ: Mapping[str, str] | None = None) -> Target | None:
    """Return what $VIDETTE_KERNELS asks for, "native" if it is unset or empty; None: no kernels.

    Raises:
        UsageError: it is neither a target nor "off".
    """
    value = (os.environ if environ is None else environ).get(VARIABLE, "")
    if value == "off":
        return None
    for target in TARGETS:
        if value in ("", target):
            return target
    raise UsageError(f"{VARIABLE} is {value!r}; it must be one of off, {', '.join(TARGETS)}")


def load_kernels(path: Path) -> Kernels:
    """Load a library, and ask it what it is.

    Raises:
        KernelError: as of `load_library`.
    """
    library = load_library(path)
    isa: bytes = library.vidette_kernels_isa()
    return Kernels(library, path, isa.decode())


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library of ours.

    Args:
        path: where it is; its directory and the file are looked at before anything of it runs.

    Raises:
        KernelError: others could have written it, it cannot be loaded, or its ABI is another.
    """
    try:
        check_trust(path)
        library = ctypes.CDLL(os.fspath(path.absolute()))
    except OSError as exc:
        raise KernelError(f"cannot load the native kernels in {path}: {exc}") from exc
    try:
        library.vidette_kernels_abi.argtypes = ()
        library.vidette_kernels_abi.restype = ctypes.c_int
        library.vidette_kernels_isa.argtypes = ()
        library.vidette_kernels_isa.restype = ctypes.c_char_p
    except AttributeError as exc:
        raise KernelError(f"{path} holds no native kernels: {exc}") from exc
    abi: int = library.vidette_kernels_abi()
    if abi != ABI:
        raise KernelError(f"the native kernels in {path} have ABI {abi}, and {ABI} is needed")
    return library


def _find_or_compile(target: Target, directory: Path | None, compiler: Path | None) -> Path:
    def starting() -> None:
        logger.info("compiling the native kernels for this machine, which takes some seconds, once")

    try:
        return compile_kernels(target=target, compiler=compiler, directory=directory, starting=starting)
    except NoCompiler:
        # Compiled ahead of time, perhaps, where there was one.
        if found := find_kernels(target=target, directory=directory):
            return found
        raise
